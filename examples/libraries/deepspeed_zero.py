"""DeepSpeed's ZeRO stages 1, 2 and 3 on a CPU, compared with each other.

Every stage trains the same small model on the same batches; losses and weights must
agree. Run it with 2, 4 or 8 ranks:

    torchrun --nproc-per-node 4 examples/libraries/deepspeed_zero.py
    phalanx run -n 4 examples/libraries/deepspeed_zero.py
"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed import comm

STEPS, ROWS, FEATURES, CLASSES = 4, 8, 12, 5


def make_model() -> torch.nn.Module:
    torch.manual_seed(11)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32),
        torch.nn.GELU(),
        torch.nn.Linear(32, 32),
        torch.nn.GELU(),
        torch.nn.Linear(32, CLASSES),
    )


def settings(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": ROWS // 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": STEPS},
        },
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def rows(step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What this rank trains on in one half of a step."""
    generator = torch.Generator().manual_seed(1000 * comm.get_rank() + 10 * step + part)
    inputs = torch.randn(ROWS // 2, FEATURES, generator=generator)
    return inputs, torch.randint(CLASSES, (ROWS // 2,), generator=generator)


def weights(engine: deepspeed.DeepSpeedEngine) -> float:
    """The norm of all parameters; with stage 3 they are put together first."""
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return sum(p.detach().square().sum().item() for p in engine.module.parameters()) ** 0.5


def train(stage: int) -> tuple[list[float], float]:
    model = make_model()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings(stage)
    )
    losses = []
    for step in range(STEPS):
        total = torch.zeros(())
        for part in range(2):
            inputs, targets = rows(step, part)
            loss = F.cross_entropy(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            total += loss.detach() / 2
        comm.all_reduce(total)
        losses.append(total.item() / comm.get_world_size())
    return losses, weights(engine)


def main() -> None:
    deepspeed.init_distributed("gloo")
    results = {stage: train(stage) for stage in (0, 1, 2, 3)}
    for stage, (losses, norm) in results.items():
        torch.testing.assert_close(losses, results[0][0], rtol=1e-4, atol=1e-5)
        if comm.get_rank() == 0:
            text = " ".join(f"{loss:.5f}" for loss in losses)
            print(f"result stage {stage}: losses {text}, norm of the weights {norm:.4f}")
    comm.destroy_process_group()


if __name__ == "__main__":
    main()
