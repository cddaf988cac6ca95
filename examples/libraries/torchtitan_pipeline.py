"""torchtitan's Llama 3 debug model as a pipeline of two stages with FSDP inside, on a CPU.

Stages, schedule and splitting are torchtitan's; the schedule's name may follow (1F1B, GPipe or
Interleaved1F1B). Run it with 4 ranks:

    torchrun --nproc-per-node 4 examples/libraries/torchtitan_pipeline.py
    phalanx run -n 4 examples/libraries/torchtitan_pipeline.py Interleaved1F1B
"""

# ruff: noqa: E402 (the device is named before the rest is imported)

import sys

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # for the groups of one rank
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils as tools

tools.device_type, tools.device_module = "cpu", torch.cpu

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import (
    CommConfig,
    CompileConfig,
    DebugConfig,
    ParallelismConfig,
    TrainingConfig,
)
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

STEPS, ROWS, LENGTH = 3, 4, 16


def configure(schedule: str) -> Trainer.Config:
    """The debug model with four layers and plain attention, in a pipeline of two stages."""
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:4]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=spec.model.vocab_size),
        optimizer=default_adamw(lr=1e-2, implementation="for-loop"),
        training=TrainingConfig(
            local_batch_size=ROWS,
            seq_len=LENGTH,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=2,
            pipeline_parallel_schedule=schedule,
            spmd_backend="partial_dtensor",
        ),
        debug=DebugConfig(seed=3),
    )


def build(config: Trainer.Config, dims: ParallelDims) -> tuple:
    """The schedule and this rank's parts of the model, filled."""
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    schedule, parts, is_first, is_last = config.model_spec.pipelining_fn(
        model,
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=CompileConfig(),
        ac_config=config.activation_checkpoint,
        dump_folder=".",
        device=torch.device("cpu"),
        model_config=config.model_spec.model,
        parallelize_fn=config.model_spec.parallelize_fn,
        loss_fn=config.loss.build(compile_config=config.compile),
    )
    for part in parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # Gloo adds, and does no more
        part.to_empty(device="cpu")
        with torch.no_grad():
            part.init_weights()
        part.train()
    return schedule, parts, is_first, is_last


def batch(dims: ParallelDims, words: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of one place in the batch mesh, and what should follow each word."""
    generator = torch.Generator().manual_seed(dims.get_mesh("batch").get_local_rank())
    rows = torch.randint(words, (ROWS, LENGTH + 1), generator=generator)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main() -> None:
    config = configure(sys.argv[1] if len(sys.argv) > 1 else "1F1B")
    world_size = dist_utils.init_distributed(CommConfig(trace_buf_size=0))
    dims = ParallelDims.from_config(config.parallelism, world_size)
    dist_utils.set_spmd_backend(dims.spmd_backend)
    dist_utils.set_determinism(
        dims, torch.device("cpu"), config.debug, distinct_seed_mesh_dims=["pp"]
    )
    schedule, parts, is_first, is_last = build(config, dims)
    optimizers = config.optimizer.build(model_parts=parts)
    tokens = torch.tensor(ROWS * LENGTH * dims.dp_shard)
    inputs, labels = batch(dims, config.model_spec.model.vocab_size)
    for step in range(STEPS):
        optimizers.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(
            *([inputs] if is_first else []),
            target=labels if is_last else None,
            losses=losses if is_last else None,
            loss_kwargs={"global_valid_tokens": tokens},
            return_outputs=False,
        )
        norm = dist_utils.clip_grad_norm_(
            [parameter for part in parts for parameter in part.parameters()],
            config.training.max_norm,
            pp_mesh=dims.get_mesh("pp"),
        )
        optimizers.step()
        loss = torch.stack(losses).sum().detach() if is_last else torch.zeros(())
        mean = dist_utils.dist_sum(loss, dims.world_mesh)
        print(f"step {step}: loss {mean:.4f}, norm of the gradients {norm.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
