"""Megatron Core on GPUs: GPT, pipeline schedule, data parallelism and sharded optimizer.

Tensor parallel by two, a pipeline of two stages, the rest data parallel. The losses must be
those of the same model on one rank, and every rank must draw its own random numbers from
Megatron's tracker. NCCL wants a GPU for each rank; `phalanx run` takes those there are. Run it
with 4 or 8 ranks:

    torchrun --nproc-per-node 8 examples/libraries/megatron_gpu.py
    phalanx run -n 8 --device cuda --gpus 1 examples/libraries/megatron_gpu.py
"""

import os
import re
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state as state
from megatron.core import tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

LAYERS, HIDDEN, HEADS, WORDS, LENGTH = 4, 32, 4, 64, 16
ROWS, PARTS, STEPS, SEED = 2, 4, 4, 3


def make_model(tensor: int, pipeline: int) -> tuple[GPTModel, TransformerConfig]:
    """The model, or this rank's part of it."""
    state.initialize_model_parallel(
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline
    )
    model_parallel_cuda_manual_seed(SEED)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32,
    )
    torch.manual_seed(SEED)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=WORDS,
        max_sequence_length=LENGTH,
        pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )
    return model.cuda(), config


def fill(model: GPTModel, whole: dict[str, torch.Tensor]) -> None:
    """Copy this rank's part of the whole model's weights."""
    size = state.get_tensor_model_parallel_world_size()
    rank = state.get_tensor_model_parallel_rank()
    stages = state.get_pipeline_model_parallel_world_size()
    first = state.get_pipeline_model_parallel_rank() * (LAYERS // stages)
    for name, value in model.named_parameters():
        there = re.sub(r"layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) + first}.", name)
        weight = whole[there]
        if getattr(value, "tensor_model_parallel", False):
            weight = weight.chunk(size, dim=value.partition_dim)[rank]
        value.data.copy_(weight)


def rows(size: int, rank: int) -> torch.Tensor:
    """The words of one data-parallel rank, out of those of all."""
    generator = torch.Generator().manual_seed(17)
    words = torch.randint(WORDS, (PARTS * ROWS * size, LENGTH + 1), generator=generator)
    return words.cuda().chunk(size)[rank]


def losses_of(model: torch.nn.Module, words: torch.Tensor) -> torch.Tensor:
    """What the model says of these rows: losses, or what the next stage begins with."""
    places = torch.arange(LENGTH, device=words.device).expand(len(words), LENGTH)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=words.device).triu(1)
    inputs, labels = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    return model(inputs, places, mask[None, None], labels=labels)


def mean_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.mean()
    return loss, {"loss": loss.detach().clone()}


def forward_step(batches, model: torch.nn.Module) -> tuple:
    """What Megatron's schedule calls for each micro-batch."""
    return losses_of(model, next(batches)), mean_of


def train_parallel(model: GPTModel, config: TransformerConfig) -> list[float]:
    """The losses of some steps on all ranks; only the last stage knows them."""
    wrapped = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), model
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-2,
            weight_decay=0.0,
            clip_grad=1.0,
            use_distributed_optimizer=True,
        ),
        [wrapped],
    )
    config.finalize_model_grads_func = finalize_model_grads
    words = rows(state.get_data_parallel_world_size(), state.get_data_parallel_rank())
    schedule = partial(
        get_forward_backward_func(),
        forward_step_func=forward_step,
        model=[wrapped],
        num_microbatches=PARTS,
        seq_length=LENGTH,
        micro_batch_size=ROWS,
    )
    losses = []
    for _ in range(STEPS):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        told = schedule(data_iterator=iter(words.split(ROWS)))
        optimizer.step()
        mean = torch.tensor(sum(part["loss"].item() for part in told) / PARTS).cuda()
        dist.all_reduce(mean, group=state.get_data_parallel_group())
        losses.append(mean.item() / state.get_data_parallel_world_size())
    return losses


def train_alone(model: GPTModel, size: int) -> list[float]:
    """The same steps on one rank, with the rows of all."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    words = torch.cat([rows(size, rank) for rank in range(size)])
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = losses_of(model, words).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def draw() -> list[float]:
    """Numbers from this rank's stream for what is split, which its seed alone decides."""
    with tensor_parallel.get_cuda_rng_tracker().fork():
        drawn = torch.rand(2, device="cuda")
    seed = SEED + 2718 + state.get_tensor_model_parallel_rank()
    generator = torch.Generator(device="cuda").manual_seed(seed)
    torch.testing.assert_close(drawn, torch.rand(2, device="cuda", generator=generator))
    return drawn.tolist()


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model, _ = make_model(1, 1)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    expected = train_alone(model, dist.get_world_size() // 4)
    state.destroy_model_parallel()

    model, config = make_model(2, 2)
    fill(model, weights)
    drawn = " ".join(f"{value:.4f}" for value in draw())
    losses = train_parallel(model, config)
    place = f"stage {state.get_pipeline_model_parallel_rank()}"
    place += f" part {state.get_tensor_model_parallel_rank()}"
    place += f" of data-parallel rank {state.get_data_parallel_rank()}"
    if state.is_pipeline_last_stage():
        torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-4)
        print(f"{place}: losses as on one rank", " ".join(f"{loss:.4f}" for loss in losses))
    print(f"{place}: drawn {drawn}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
