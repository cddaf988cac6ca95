"""Megatron Core's GPT model, split by two in tensors and by two in a pipeline, on a CPU.

The rest of the ranks is data parallel. The same model on one rank gives the weights to begin
with and the losses to compare with. Megatron's own attention and pipeline schedule need a GPU,
so attention is plain torch (put in by Megatron's layer spec) and the stages send to each other
by themselves. Run it with 4 or 8 ranks:

    torchrun --nproc-per-node 8 examples/libraries/megatron_gpt.py
    phalanx run -n 8 examples/libraries/megatron_gpt.py
"""

import re

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state as state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.utils import get_model_config

LAYERS, HIDDEN, HEADS, WORDS, LENGTH, ROWS, STEPS = 4, 16, 4, 32, 8, 2, 3


class Attention(torch.nn.Module):
    """Causal attention of torch in the place of Megatron's."""

    def __init__(self, config: TransformerConfig, **_: object) -> None:
        super().__init__()
        self.config = config

    def forward(self, query, key, value, attention_mask, **_: object) -> torch.Tensor:
        parts = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)


def make_model(tensor: int, pipeline: int) -> GPTModel:
    """The model, or this rank's part of it."""
    state.initialize_model_parallel(
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline
    )
    model_parallel_cuda_manual_seed(3, inference_rng_tracker=True)
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
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = Attention
    torch.manual_seed(3)
    return GPTModel(
        config,
        spec,
        vocab_size=WORDS,
        max_sequence_length=LENGTH,
        pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )


def fill(model: GPTModel, whole: dict[str, torch.Tensor]) -> None:
    """Copy this rank's part of the whole model's weights."""
    size, rank = (
        state.get_tensor_model_parallel_world_size(),
        state.get_tensor_model_parallel_rank(),
    )
    stages = get_model_config(model).pipeline_model_parallel_size
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
    words = torch.randint(WORDS, (ROWS * size, LENGTH + 1), generator=generator)
    return words.chunk(size)[rank]


def loss_of(model: GPTModel, words: torch.Tensor) -> torch.Tensor:
    """The loss, or in a stage before the last what the next one begins with."""
    places = torch.arange(LENGTH).expand(len(words), LENGTH)
    inputs, labels = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    return model(inputs, places, None, labels=labels)


def step_pipeline(model: GPTModel, words: torch.Tensor) -> torch.Tensor:
    """Forward and backward through two stages; the loss, which only the last stage knows."""
    if state.is_pipeline_first_stage():
        hidden = loss_of(model, words)
        dist.send(hidden.detach(), state.get_pipeline_model_parallel_next_rank())
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, state.get_pipeline_model_parallel_next_rank())
        hidden.backward(gradient)
        return torch.zeros(())
    hidden = torch.empty(LENGTH, len(words), HIDDEN)
    dist.recv(hidden, state.get_pipeline_model_parallel_prev_rank())
    model.set_input_tensor(hidden.requires_grad_())
    loss = loss_of(model, words).mean()
    loss.backward()
    dist.send(hidden.grad, state.get_pipeline_model_parallel_prev_rank())
    return loss.detach()


def train_parallel(model: GPTModel) -> list[float]:
    """The losses of some steps on all ranks."""
    group, size = state.get_data_parallel_group(), state.get_data_parallel_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = step_pipeline(model, rows(size, state.get_data_parallel_rank()))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= size
        optimizer.step()
        dist.all_reduce(loss, group=group)
        dist.all_reduce(loss, group=state.get_pipeline_model_parallel_group())
        losses.append(loss.item() / size)
    return losses


def train_alone(model: GPTModel, size: int) -> list[float]:
    """The same steps on one rank, with the rows of all."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    words = torch.cat([rows(size, rank) for rank in range(size)])
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, words).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    model = make_model(1, 1)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    expected = train_alone(model, dist.get_world_size() // 4)
    state.destroy_model_parallel()

    model = make_model(2, 2)
    fill(model, weights)
    losses = train_parallel(model)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    print(
        f"stage {state.get_pipeline_model_parallel_rank()}",
        f"part {state.get_tensor_model_parallel_rank()}",
        f"of data-parallel rank {state.get_data_parallel_rank()}:",
        f"{sum(p.numel() for p in model.parameters())} parameters,",
        "losses as on one rank:",
        " ".join(f"{loss:.4f}" for loss in losses),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
