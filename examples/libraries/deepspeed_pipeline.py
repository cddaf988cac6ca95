"""DeepSpeed's pipeline engine on a CPU: two stages, the rest of the ranks data parallel.

Run it with 2 or 4 ranks:

    torchrun --nproc-per-node 4 examples/libraries/deepspeed_pipeline.py
    phalanx run -n 4 examples/libraries/deepspeed_pipeline.py
"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from deepspeed import comm
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

STEPS, PARTS, ROWS, WIDTH, CLASSES = 3, 4, 2, 8, 4

SETTINGS = {
    "train_micro_batch_size_per_gpu": ROWS,
    "gradient_accumulation_steps": PARTS,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
}


def batches(rank: int):
    """Micro-batches without end, the same on all stages of one data-parallel rank."""
    generator = torch.Generator().manual_seed(rank)
    while True:
        inputs = torch.randn(ROWS, WIDTH, generator=generator)
        yield inputs, inputs[:, :CLASSES].argmax(dim=1)


def main() -> None:
    deepspeed.init_distributed("gloo")
    torch.manual_seed(4)
    layers = [
        LayerSpec(nn.Linear, WIDTH, 32),
        LayerSpec(nn.Tanh),
        LayerSpec(nn.Linear, 32, 32),
        LayerSpec(nn.Tanh),
        LayerSpec(nn.Linear, 32, CLASSES),
    ]
    model = PipelineModule(
        layers, num_stages=2, loss_fn=nn.CrossEntropyLoss(), partition_method="uniform"
    )
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=SETTINGS
    )
    data = batches(engine.grid.get_data_parallel_rank())
    losses = [engine.train_batch(data_iter=data).item() for _ in range(STEPS)]
    norm = sum(p.detach().square().sum().item() for p in model.parameters()) ** 0.5
    print(f"result stage {engine.grid.get_stage_id()}: norm of its weights {norm:.4f}")
    print("result losses", " ".join(f"{loss:.5f}" for loss in losses))
    comm.destroy_process_group()


if __name__ == "__main__":
    main()
