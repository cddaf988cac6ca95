"""A small language model of Megatron Core's tensor-parallel layers, trained for a few steps.

Embedding, a column-parallel and a row-parallel linear layer and the cross entropy are split by
two; what remains of the ranks is data parallel. Losses and weights are compared with the same
model computed on one rank in plain torch. Run it with 2, 4 or 8 ranks:

    torchrun --nproc-per-node 4 examples/libraries/megatron_tensor_parallel.py
    phalanx run -n 4 examples/libraries/megatron_tensor_parallel.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state as state
from megatron.core import tensor_parallel as tp
from megatron.core.transformer import TransformerConfig

VOCABULARY, HIDDEN, INNER, LENGTH, STEPS = 32, 16, 64, 6, 4


class Model(torch.nn.Module):
    """Embedding, two linear layers split by columns and rows, and a head of all words."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        common = {"config": config, "init_method": torch.nn.init.xavier_normal_}
        self.embedding = tp.VocabParallelEmbedding(VOCABULARY, HIDDEN, **common)
        self.rise = tp.ColumnParallelLinear(
            HIDDEN, INNER, bias=True, gather_output=False, **common
        )
        self.fall = tp.RowParallelLinear(
            INNER, HIDDEN, bias=True, input_is_parallel=True, skip_bias_add=False, **common
        )
        self.head = tp.ColumnParallelLinear(
            HIDDEN, VOCABULARY, bias=False, gather_output=False, **common
        )

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        inner, _ = self.rise(hidden)
        outer, _ = self.fall(F.gelu(inner))
        logits, _ = self.head(hidden + outer)
        return tp.vocab_parallel_cross_entropy(logits.float(), targets).mean()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The words of one step for every data-parallel rank."""
    generator = torch.Generator().manual_seed(100 + step)
    shape = (2 * state.get_data_parallel_world_size(), LENGTH + 1)
    words = torch.randint(VOCABULARY, shape, generator=generator)
    return words[:, :-1], words[:, 1:]


def gathered(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A parameter put together again from the ranks that hold its parts."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return parameter.detach().clone()
    size = state.get_tensor_model_parallel_world_size()
    parts = [torch.empty_like(parameter) for _ in range(size)]
    dist.all_gather(parts, parameter.detach(), group=state.get_tensor_model_parallel_group())
    return torch.cat(parts, dim=parameter.partition_dim)


def serial_loss(weights: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    """The same loss over the whole batch, in plain torch."""
    words, targets = batch(step)
    hidden = F.embedding(words, weights["embedding.weight"])
    inner = F.gelu(F.linear(hidden, weights["rise.weight"], weights["rise.bias"]))
    outer = F.linear(inner, weights["fall.weight"], weights["fall.bias"])
    logits = F.linear(hidden + outer, weights["head.weight"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_step(model: Model, optimizer: torch.optim.Optimizer, step: int) -> float:
    """One step on this rank's rows; gradients are averaged over the data-parallel group."""
    group = state.get_data_parallel_group()
    size, rank = state.get_data_parallel_world_size(), state.get_data_parallel_rank()
    words, targets = (part.chunk(size)[rank] for part in batch(step))
    loss = model(words, targets)
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= size
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, group=group)
    return float(mean / size)


def train_serially(weights: dict[str, torch.Tensor]) -> list[float]:
    """The losses of the same steps, in plain torch; the weights are changed in place."""
    optimizer = torch.optim.SGD(weights.values(), lr=0.5)
    losses = []
    for step in range(STEPS):
        loss = serial_loss(weights, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    state.initialize_model_parallel(tensor_model_parallel_size=2)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        use_cpu_initialization=True,
        tensor_model_parallel_size=2,
    )
    torch.manual_seed(7)
    model = Model(config)
    weights = {
        name: gathered(value).requires_grad_() for name, value in model.named_parameters()
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = [train_step(model, optimizer, step) for step in range(STEPS)]
    expected = train_serially(weights)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    for name, value in model.named_parameters():
        torch.testing.assert_close(gathered(value), weights[name].detach())
    norm = sum(value.square().sum().item() for value in weights.values()) ** 0.5
    if dist.get_rank() == 0:
        print("losses", " ".join(f"{loss:.5f}" for loss in losses))
        print(f"norm of all weights {norm:.5f}, equal to one rank's in plain torch")
    state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
