"""DeepSpeed on a CPU: a training run saved half way and taken up again by a new engine.

ZeRO stage 2 with bfloat16 weights, then stage 3; the data loader is DeepSpeed's. The second
half must give the same losses in both. Checkpoints go to the current folder. Run it with 2 or 4
ranks:

    torchrun --nproc-per-node 2 examples/libraries/deepspeed_checkpoint.py
    phalanx run -n 2 examples/libraries/deepspeed_checkpoint.py
"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed import comm
from torch.utils.data import TensorDataset

STEPS, ROWS, FEATURES = 3, 4, 6


def settings(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": ROWS,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "bf16": {"enabled": stage == 2},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(
        2 * STEPS * ROWS * comm.get_world_size(), FEATURES, generator=generator
    )
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())


def make_engine(stage: int) -> tuple:
    """A new engine with its loader; the weights are the same each time."""
    torch.manual_seed(9)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=dataset(),
        config=settings(stage),
    )
    return engine, list(loader)


def train(engine: deepspeed.DeepSpeedEngine, batches: list) -> list[float]:
    """Each step's loss, the mean over the ranks."""
    losses = []
    for inputs, targets in batches:
        if engine.bfloat16_enabled():
            inputs = inputs.bfloat16()
        loss = F.mse_loss(engine(inputs).float(), targets)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        comm.all_reduce(mean)
        losses.append(mean.item() / comm.get_world_size())
    return losses


def main() -> None:
    deepspeed.init_distributed("gloo")
    for stage in (2, 3):
        engine, batches = make_engine(stage)
        first = train(engine, batches[:STEPS])
        engine.save_checkpoint(f"stage{stage}", tag="half", client_state={"done": STEPS})
        second = train(engine, batches[STEPS:])

        other, _ = make_engine(stage)
        path, client = other.load_checkpoint(f"stage{stage}", tag="half")
        again = train(other, batches[client["done"] :])
        assert again == second, (again, second)
        name = os.path.basename(os.path.dirname(path))
        steps = other.global_steps
        text = " ".join(f"{loss:.5f}" for loss in first + second)
        print(f"result stage {stage}: losses {text}, from {name!r} to step {steps}")
    comm.destroy_process_group()


if __name__ == "__main__":
    main()
