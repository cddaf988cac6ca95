"""Gradients that end at a collective; and programs that look alike and are right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import phalanx
from phalanx.checks.results.cut_graph import find_cut_graphs
from phalanx.checks.results.noted_results import KIND, Cut, Reached
from phalanx.journal.events import Noted
from phalanx.journal.reader import Journal
from phalanx.journal.ring import Ring
from phalanx.model import Finding, Group, Op
from tests.support import assert_silent

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
functional = nn.functional


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x), functional.normalize(self.right(x), dim=-1)


def towers() -> tuple[Tensor, Tensor]:
    torch.manual_seed(dist.get_rank())
    one, other = Towers()(torch.randn(4, 3))
    return one, other


def gather(t: Tensor) -> Tensor:
    out = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(out, t)
    return torch.cat(out)


def contrast(one: Tensor, other: Tensor) -> Tensor:
    targets = torch.arange(4)
    return functional.cross_entropy(one @ other.t(), targets)


# -- wrong ------------------------------------------------------------------------------------


def in_a_helper() -> None:
    one, other = towers()
    loss = contrast(one, gather(other))
    loss.backward()


def in_one_function() -> None:
    one, other = towers()
    out = [torch.empty_like(other) for _ in range(dist.get_world_size())]
    dist.all_gather(out, other)
    keys = torch.cat([each.float() for each in out])
    logits = one @ keys.t()
    loss = functional.cross_entropy(logits, torch.arange(4))
    total = 0.5 * loss
    total.backward()


def in_one_tensor() -> None:
    one, other = towers()
    keys = torch.empty(4 * dist.get_world_size(), 2)
    dist.all_gather_into_tensor(keys, other.contiguous())
    contrast(one, keys).backward()


def in_one_tensor_by_its_other_name() -> None:
    one, other = towers()
    keys = torch.empty(4 * dist.get_world_size(), 2)
    single: Any = dist
    if hasattr(single, "all_gather_single"):
        single.all_gather_single(keys, other)
    else:
        dist.all_gather_into_tensor(keys, other)
    contrast(one, keys).backward()


def a_head_behind_it() -> None:
    _, other = towers()
    head = nn.Linear(2, 1)
    head(gather(other)).sum().backward()


class Contrast(nn.Module):
    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        every = gather(other)
        right = (one @ every.t()).argmax(-1).float().mean()
        return contrast(one, every), right


def in_a_module() -> None:
    loss, right = Contrast()(*towers())
    loss.backward()
    assert not right.requires_grad


def in_both_branches() -> None:
    one, other = towers()
    loss = contrast(one, gather(other))
    if dist.get_rank() == 0:
        loss.backward()
    else:
        (loss * 2).backward()


def tokens_exchanged() -> None:
    _, tokens = towers()
    received = torch.empty_like(tokens)
    dist.all_to_all_single(received, tokens)
    expert = nn.Linear(2, 2)
    expert(received).sum().backward()


WRONG = [
    in_a_helper,
    in_one_function,
    in_one_tensor,
    in_one_tensor_by_its_other_name,
    a_head_behind_it,
    in_a_module,
    in_both_branches,
    tokens_exchanged,
]


def findings(program: Callable[[], Any], **options: Any) -> list[Finding]:
    with pytest.warns(phalanx.PhalanxWarning) as caught:
        phalanx.run(program, **{"ranks": 2, **options})
    told = [each.message for each in caught]
    return [each.finding for each in told if isinstance(each, phalanx.PhalanxWarning)]  # type: ignore[misc]


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_a_gradient_that_ends_at_a_call(program: Callable[[], Any]) -> None:
    (found,) = findings(program)
    assert found.kind == KIND and found.severity == "warning" and found.ranks == (0, 1)
    assert "lose a gradient in all_" in found.headline
    site = found.blocks[0].op.site
    assert site is not None and ".all_" in site.source


def test_the_report_names_caller_and_loss() -> None:
    (found,) = findings(in_a_helper)
    _, caller, end = found.blocks[0].notes
    assert caller.startswith("called from ")
    assert end.endswith("calls backward() on loss, which is computed of it")


# -- what looks alike and is right ------------------------------------------------------------


def own_part_put_back() -> None:
    one, other = towers()
    out = [torch.empty_like(other) for _ in range(dist.get_world_size())]
    dist.all_gather(out, other)
    out[dist.get_rank()] = other
    contrast(one, torch.cat(out)).backward()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return gather(t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        dist.all_reduce(grad)
        return grad[4 * dist.get_rank() :][:4]


def an_autograd_function() -> None:
    one, other = towers()
    contrast(one, Gather.apply(other)).backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def gather_without(t: Tensor) -> Tensor:
    out = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(out, t)
    return torch.cat(out)


def without_gradients() -> None:
    one, other = towers()
    contrast(one, gather_without(other)).backward()


def detached() -> None:
    one, other = towers()
    contrast(one, gather(other.detach())).backward()


def detached_afterwards() -> None:
    one, other = towers()
    contrast(one, gather(other).detach()).backward()


def both_ways() -> None:
    """As in CLIP with a loss of its own for each rank: gradients come by the other term."""
    one, other = towers()
    loss = contrast(one, gather(other)) + contrast(other, gather(one))
    loss.backward()


def for_a_metric() -> None:
    one, other = towers()
    every = gather(one)
    accuracy = (every.argmax(-1) == 0).float().mean().item()
    loss = contrast(one, one.detach()) + other.sum()
    loss.backward()
    assert accuracy >= 0


def never_trained() -> None:
    one, other = towers()
    loss = contrast(one, gather(other))
    assert loss.item() > 0


def a_metric_beside_the_loss() -> None:
    """What is gathered is returned beside the loss, and not in it."""

    def compute() -> tuple[Tensor, Tensor]:
        one, other = towers()
        every = gather(other)
        return contrast(one, one.detach()), every.mean()

    loss, mean = compute()
    loss.backward()
    assert mean.numel() == 1


def a_mean_of_its_own() -> None:
    """Statistics of all ranks, while the input has its gradient by the values themselves."""
    one, other = towers()
    means = [torch.empty(2) for _ in range(dist.get_world_size())]
    dist.all_gather(means, other.mean(0))
    centred = other - torch.stack(means).mean(0)
    contrast(one, centred).backward()


def by_hand() -> None:
    one, other = towers()
    out = torch.empty(4 * dist.get_world_size(), 2)
    dist.all_gather_into_tensor(out, other)
    out.requires_grad_()
    contrast(one, out).backward()
    assert out.grad is not None
    dist.all_reduce(out.grad)
    other.backward(out.grad[4 * dist.get_rank() :][:4])


def under_no_grad() -> None:
    one, other = towers()
    with torch.no_grad():
        every = gather(other)
        scale = every.norm()
    (contrast(one, one.detach()) / scale + other.sum()).backward()


def of_the_parameters() -> None:
    """A leaf is no part of a graph: its values are compared or saved."""
    model = Towers()
    out = [torch.empty(2, 3) for _ in range(dist.get_world_size())]
    dist.all_gather(out, model.left.weight)
    spread = torch.stack(out).std()
    (model(torch.ones(1, 3))[0].sum() * spread).backward()


def only_sometimes() -> None:
    one, other = towers()
    loss = contrast(one, gather(other))
    if loss.item() < 0:
        loss.backward()


def indices_only() -> None:
    """What is hard is chosen among all, and learnt from what the rank has itself."""
    one, other = towers()
    every = gather(other)
    hard = (one.detach() @ every.t()).topk(2).indices
    rows = hard.max(-1).values % 4
    (one - other[rows]).square().sum().backward()


def a_deep_function_of_it() -> None:
    one, other = towers()
    spread = (other.square().mean(0) + 1e-6).sqrt().log().abs()
    out = [torch.empty_like(spread) for _ in range(dist.get_world_size())]
    dist.all_gather(out, spread)
    (contrast(one, other) + torch.stack(out).mean() * one.sum()).backward()


def reassigned() -> None:
    one, other = towers()
    loss = contrast(one, gather(other))
    shown = loss.item()
    loss = contrast(one, one.detach())
    loss.backward()
    assert shown > 0


RIGHT = [
    indices_only,
    a_deep_function_of_it,
    reassigned,
    own_part_put_back,
    an_autograd_function,
    without_gradients,
    detached,
    detached_afterwards,
    both_ways,
    for_a_metric,
    never_trained,
    a_metric_beside_the_loss,
    a_mean_of_its_own,
    by_hand,
    under_no_grad,
    of_the_parameters,
    only_sometimes,
]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_what_looks_alike_is_silent(program: Callable[[], Any]) -> None:
    assert_silent(program, kind=KIND)


@pytest.mark.programs
def test_on_processes() -> None:
    with phalanx.World(ranks=2, engine="processes") as world:
        with pytest.warns(phalanx.PhalanxWarning, match="lose a gradient in all_gather"):
            world.run(in_a_helper)
        for program in (own_part_put_back, an_autograd_function, both_ways, for_a_metric):
            assert_silent(program, world=world, kind=KIND)


def test_a_comment_silences_it() -> None:
    def program() -> None:
        one, other = towers()
        out = [torch.empty_like(other) for _ in range(dist.get_world_size())]
        dist.all_gather(out, other)  # phalanx: ignore[lost-result] the teacher
        contrast(one, torch.cat(out)).backward()

    assert_silent(program)


def test_gradients_are_as_without_the_look() -> None:
    def program() -> list[float]:
        one, other = towers()
        one.retain_grad()
        loss = contrast(one, gather(other)) + other.sum()
        loss.backward()
        assert one.grad is not None
        return one.grad.flatten().tolist()

    assert phalanx.run(program, ranks=2) == phalanx.run(
        program, ranks=2, checks="all,-lost-result"
    )


# -- the rule, with notes made by hand --------------------------------------------------------


def journal(*noted: Any) -> Journal:
    rings = [Ring(64) for _ in range(2)]
    for rank, what in enumerate(noted):
        rings[rank % 2].add(Noted(float(rank), rank % 2, 0, None, KIND, what))
    return Journal(rings, {})


def cut(rank: int, function: Callable[[], Any]) -> Cut:
    """As noted of the `all_gather` of a function here."""
    code = function.__code__
    with open(__file__) as file:
        lines = file.read().splitlines()

    def is_call(first: int | None, last: int | None, start: int, end: int) -> bool:
        text = lines[first - 1][start:end] if first and first == last else ""
        return text.startswith("dist.all_gather(") and text.endswith(")")

    positions: Any = getattr(code, "co_positions")()  # noqa: B009
    at = next(number for number, position in enumerate(positions) if is_call(*position))
    return Cut(Op(rank, "all_gather", Group("world", (0, 1))), ((code, 2 * at),))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no columns")
def test_a_gradient_that_came_on_any_rank_is_enough() -> None:
    one, other = cut(0, in_one_function), cut(1, in_one_function)
    (found,) = find_cut_graphs(journal(one, other))
    assert found.ranks == (0, 1)
    assert not list(find_cut_graphs(journal(one, other, Reached(one.places))))
