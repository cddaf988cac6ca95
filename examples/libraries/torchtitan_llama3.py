"""torchtitan's Llama 3 debug model, made smaller: tensor parallel times FSDP on a CPU.

The model comes from torchtitan's registry and is split by its own function. A few steps are
trained with its loss, clipping and optimizer. Run it with 2, 4 or 8 ranks; the name of
torchtitan's way to describe tensors may follow (full_dtensor or partial_dtensor):

    torchrun --nproc-per-node 4 examples/libraries/torchtitan_llama3.py
    phalanx run -n 4 examples/libraries/torchtitan_llama3.py partial_dtensor
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
from torchtitan.distributed import ParallelDims, full_dtensor
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.spmd_types import annotate_input_spmd_types
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

STEPS, ROWS, LENGTH = 3, 2, 16


def configure(backend: str) -> Trainer.Config:
    """The debug model with two layers and plain attention, tensor parallel by two."""
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
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
        parallelism=ParallelismConfig(tensor_parallel_degree=2, spmd_backend=backend),
        debug=DebugConfig(seed=3),
    )


def build(config: Trainer.Config, dims: ParallelDims) -> torch.nn.Module:
    """Make the model on the meta device, split it and fill it."""
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    model = config.model_spec.parallelize_fn(
        model,
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=CompileConfig(),
        ac_config=config.activation_checkpoint,
        dump_folder=".",
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # Gloo adds, and does no more
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights()
    return model.train()


def batch(dims: ParallelDims, words: int) -> tuple:
    """What the ranks of one place in the batch mesh train on."""
    mesh = dims.get_optional_mesh("batch")
    place = 0 if mesh is None else mesh.get_local_rank()
    generator = torch.Generator().manual_seed(place)
    rows = torch.randint(words, (ROWS, LENGTH + 1), generator=generator)
    inputs, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    if dims.spmd_backend == "full_dtensor":
        return full_dtensor.parallelize_inputs(dims, inputs, labels, {})
    if dims.spmd_backend == "spmd_types":
        return annotate_input_spmd_types(dims, inputs, labels, {})
    return inputs, labels, {}


def main() -> None:
    backend = sys.argv[1] if len(sys.argv) > 1 else "full_dtensor"
    config = configure(backend)
    world_size = dist_utils.init_distributed(CommConfig(trace_buf_size=0))
    dims = ParallelDims.from_config(config.parallelism, world_size)
    dist_utils.set_spmd_backend(backend)
    dist_utils.set_determinism(
        dims, torch.device("cpu"), config.debug, distinct_seed_mesh_dims=["pp"]
    )
    model = build(config, dims)
    loss_fn = config.loss.build(compile_config=config.compile)
    optimizers = config.optimizer.build(model_parts=[model])
    context = dist_utils.get_spmd_context(parallel_dims=dims)
    loss_mesh = dims.get_optional_mesh("loss")
    tokens = torch.tensor(ROWS * LENGTH * dims.dp_replicate * dims.dp_shard)
    for step in range(STEPS):
        inputs, labels, more = batch(dims, config.model_spec.model.vocab_size)
        optimizers.zero_grad()
        with context():
            loss, _ = loss_fn(model(inputs, **more), labels, tokens)
            loss.backward()
        norm = dist_utils.clip_grad_norm_(model.parameters(), config.training.max_norm)
        optimizers.step()
        mean = dist_utils.dist_sum(loss.detach(), loss_mesh)
        print(f"step {step}: loss {mean:.4f}, norm of the gradients {norm.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
