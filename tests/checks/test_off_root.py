"""Results of `reduce` that ranks go by which have none; and programs that are right."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import phalanx
from phalanx.checks.results.noted_results import KIND, OffRoot
from phalanx.checks.results.off_root import OffRootFollower, find_off_root
from phalanx.journal.events import Noted
from phalanx.journal.reader import Journal
from phalanx.journal.ring import Ring
from phalanx.model import Finding, Group, Op
from tests.support import assert_silent


def loss_of(epoch: int) -> Tensor:
    return torch.tensor([abs(epoch - 2.0) + 0.1 * dist.get_rank()])


def reduced(epoch: int) -> Tensor:
    loss = loss_of(epoch)
    dist.reduce(loss, dst=0)
    return loss


def is_main() -> bool:
    return dist.get_rank() == 0


# -- wrong ------------------------------------------------------------------------------------


def the_best_epoch() -> None:
    best, best_epoch = float("inf"), -1
    for epoch in range(4):
        value = reduced(epoch)
        if value.item() < best:
            best, best_epoch = value.item(), epoch
    print("best epoch", best_epoch, math.floor(best))


def early_stopping() -> None:
    best, bad = float("inf"), 0
    for epoch in range(3):
        value = reduced(epoch) / dist.get_world_size()
        if value < best:
            best = value.item()
        else:
            bad += 1
        if bad > 5:
            break


def stops_at_once() -> None:
    for epoch in range(3):
        total = loss_of(epoch)
        dist.reduce(total, 0)
        mean = float(total) / 2
        if mean > 1e9:
            break


def until_it_converges() -> None:
    error = torch.ones(1)
    rounds = 0
    while error.item() > 0.5 and rounds < 3:
        rounds += 1
        error = torch.full((1,), 0.01)
        dist.reduce(error, dst=0)


def a_schedule() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for epoch in range(2):
        value = reduced(epoch)
        scheduler.step(value.item())


class Trainer:
    def __init__(self) -> None:
        self.total = torch.zeros(1)

    def evaluate(self) -> bool:
        self.total = torch.ones(1)
        dist.reduce(self.total, dst=0)
        if self.total.item() > 1e9:
            return True
        print("not yet")
        return False

    def fit(self) -> None:
        for _ in range(2):
            done = self.evaluate()
            if done:
                break


def in_an_object() -> None:
    Trainer().fit()


def kept_in_a_list() -> None:
    history: list[float] = []
    for epoch in range(4):
        history.append(reduced(epoch).item())
        if len(history) > 1 and history[-1] > history[0] + 1e9:
            break


def a_collective_in_the_branch() -> None:
    value = reduced(0)
    if value.item() > 0:
        dist.barrier()


WRONG = [
    the_best_epoch,
    early_stopping,
    stops_at_once,
    until_it_converges,
    a_schedule,
    in_an_object,
    kept_in_a_list,
    a_collective_in_the_branch,
]


def findings(program: Callable[[], Any], **options: Any) -> list[Finding]:
    with pytest.warns(phalanx.PhalanxWarning) as caught:
        phalanx.run(program, **{"ranks": 3, **options})
    return [each.message.finding for each in caught]  # type: ignore[union-attr]


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_a_result_that_others_go_by(program: Callable[[], Any]) -> None:
    (found,) = findings(program)
    assert found.kind == KIND and found.severity == "warning" and found.ranks == (1, 2)
    assert "gave it to rank 0 only" in found.headline
    site = found.blocks[0].op.site
    assert site is not None and "dist.reduce" in site.source


def test_the_first_branch_that_went_by_it_is_named() -> None:
    (found,) = findings(early_stopping)
    assert found.blocks[0].notes[1].endswith("goes by value < best on all ranks")


# -- what looks alike and is right ------------------------------------------------------------


def read_on_the_root() -> None:
    value = reduced(0)
    if dist.get_rank() == 0 and value.item() > 1e9:
        raise ValueError
    if is_main():
        value /= 3
        print(value.item())


def divided_everywhere() -> None:
    value = reduced(0)
    value /= dist.get_world_size()
    mean = value.item()
    if is_main():
        print(mean)


def returned_on_the_root() -> None:
    def evaluate(epoch: int) -> float | None:
        value = reduced(epoch)
        if dist.get_rank() != 0:
            return None
        return value.item()

    best = float("inf")
    for epoch in range(3):
        value = evaluate(epoch)
        if value is not None and value < best:
            best = value


def only_the_root_goes_on() -> None:
    best = float("inf")
    for epoch in range(3):
        value = reduced(epoch)
        if not is_main():
            continue
        if value.item() < best:
            best = value.item()
            print("best", best)


def the_decision_is_broadcast() -> None:
    for epoch in range(3):
        value = reduced(epoch)
        stop = torch.tensor([value.item() > 1e9])
        dist.broadcast(stop, src=0)
        if stop.item():
            break


def the_result_is_broadcast() -> None:
    for epoch in range(3):
        value = reduced(epoch)
        dist.broadcast(value, src=0)
        if value.item() > 1e9:
            break


def agreed(value: Tensor) -> Tensor:
    dist.broadcast(value, src=0)
    return value


def broadcast_by_a_helper() -> None:
    for epoch in range(3):
        value = reduced(epoch)
        agreed(value)
        if value.item() > 1e9:
            break


def broadcast_as_an_object() -> None:
    for epoch in range(3):
        told = [reduced(epoch).item() > 1e9]
        dist.broadcast_object_list(told, src=0)
        if told[0]:
            break


def printed_by_all() -> None:
    """As in the tutorial: everybody shows what it has."""
    value = reduced(0)
    print("rank", dist.get_rank(), "has", value[0])


def only_saved() -> None:
    """The branch concerns what rank 0 saves, and nothing else."""
    best = float("inf")
    for epoch in range(3):
        value = reduced(epoch)
        if value.item() < best:
            best = value.item()
            if is_main():
                print("saved", epoch)


def zeroed() -> None:
    total = torch.zeros(1)
    for _ in range(3):
        total += 1
        dist.reduce(total, dst=0)
        total.zero_()
        total += 1
        if total.item() > 5:
            break


def another_value() -> None:
    value = reduced(0)
    value = torch.ones(1)
    if value.item() > 1:
        dist.barrier()


def only_its_shape() -> None:
    value = reduced(0)
    if value.numel() > 3:
        dist.barrier()


def a_conditional_value() -> None:
    value = reduced(0)
    shown = value.item() if dist.get_rank() == 0 else 0.0
    for _ in range(2):
        if shown > 1e9:
            break


def not_finite() -> None:
    value = reduced(0)
    if not torch.isfinite(value).all():
        raise ValueError("the loss is not finite")


def a_search_of_its_own() -> None:
    """The loop that is left is the rank's own business."""
    value = reduced(0)
    label = "high"
    for limit, name in ((0.5, "low"), (1.5, "middle")):
        if value.item() < limit:
            label = name
            break
    if is_main():
        print(label)


def a_leader_of_another_module() -> None:
    class Context:
        leads = leader = False

    context = Context()
    for epoch in range(3):
        value = reduced(epoch)
        if context.leader and value.item() > 1e9:
            break


def all_have_it() -> None:
    for epoch in range(3):
        value = loss_of(epoch)
        dist.all_reduce(value)
        if value.item() > 1e9:
            break


def each_is_a_root() -> None:
    parts = [torch.ones(2) for _ in range(dist.get_world_size())]
    for root, part in enumerate(parts):
        dist.reduce(part, dst=root)
    mine = parts[dist.get_rank()]
    if mine.sum().item() > 1e9:
        dist.barrier()


RIGHT = [
    read_on_the_root,
    divided_everywhere,
    returned_on_the_root,
    only_the_root_goes_on,
    the_decision_is_broadcast,
    the_result_is_broadcast,
    broadcast_by_a_helper,
    broadcast_as_an_object,
    printed_by_all,
    only_saved,
    zeroed,
    another_value,
    only_its_shape,
    a_conditional_value,
    not_finite,
    a_search_of_its_own,
    a_leader_of_another_module,
    all_have_it,
    each_is_a_root,
]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_what_looks_alike_is_silent(program: Callable[[], Any]) -> None:
    assert_silent(program, ranks=3, kind=KIND)


@pytest.mark.programs
def test_on_processes() -> None:
    with phalanx.World(ranks=3, engine="processes") as world:
        with pytest.warns(phalanx.PhalanxWarning, match="gave it to rank 0 only"):
            world.run(stops_at_once)
        for program in (read_on_the_root, the_decision_is_broadcast, only_saved):
            assert_silent(program, world=world, kind=KIND)


def test_a_comment_silences_it() -> None:
    def program() -> None:
        value = loss_of(0)
        dist.reduce(value, dst=0)  # phalanx: ignore[lost-result] alike everywhere
        if value.item() > 0:
            dist.barrier()

    assert_silent(program, ranks=3)


CLIPPING = """
import torch
import torch.distributed as dist

def program():
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    norm = sum(p.grad.square().sum() for p in model.parameters())
    dist.reduce(norm, dst=0)
    scale = 1.0 / (norm.sqrt() + 1e-6)
    for p in model.parameters():
        {line}
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("p.grad.mul_(scale)", True),
        ("p.grad *= scale", True),
        ("p.grad.mul_(2.0)", False),
        ("p.grad.mul_(scale); dist.broadcast(p.data, src=0)", False),
    ],
)
def test_gradients_that_are_scaled(tmp_path: Path, line: str, found: bool) -> None:
    """In a file of its own: where something is broadcast, that may be the new parameters."""
    file = tmp_path / "clipping.py"
    file.write_text(CLIPPING.format(line=line))
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    if found:
        (told,) = findings(names["program"])
        assert told.blocks[0].notes[1].endswith(f"goes by {line} on all ranks")
    else:
        assert_silent(names["program"], ranks=3, kind=KIND)


# -- the rule, with notes made by hand --------------------------------------------------------


def noted(rank: int, *functions: Callable[..., Any]) -> OffRoot:
    """As noted of the `reduce` of the first function, which the others call in turn."""
    texts = ("dist.reduce(", *(f"{each.__name__}(" for each in functions))
    places = tuple(map(place, functions, texts))
    return OffRoot(Op(rank, "reduce", Group("world", (0, 1, 2)), root=0), places)


def place(function: Callable[..., Any], begins: str) -> Any:
    with open(__file__) as file:
        lines = file.read().splitlines()

    def is_call(first: int | None, last: int | None, start: int, end: int) -> bool:
        text = lines[first - 1][start:end] if first and first == last else ""
        return text.startswith(begins) and text.endswith(")") and text.count("(") == 1

    positions: Any = getattr(function.__code__, "co_positions")()  # noqa: B009
    at = next(number for number, position in enumerate(positions) if is_call(*position))
    return function.__code__, 2 * at


def journal(*calls: OffRoot) -> Journal:
    rings = [Ring(64) for _ in range(3)]
    for each in calls:
        rings[each.op.rank].add(Noted(0.0, each.op.rank, 0, None, KIND, each))
    return Journal(rings, {})


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no columns")
def test_what_another_function_does_with_it() -> None:
    wrong = [noted(rank, reduced, the_best_epoch) for rank in (1, 2)]
    (found,) = find_off_root(journal(*wrong))
    assert found.ranks == (1, 2)
    assert "value.item() < best" in found.blocks[0].notes[1]
    assert not list(find_off_root(journal(noted(1, reduced))))
    assert not list(find_off_root(journal(noted(1, reduced, only_saved))))


@pytest.mark.parametrize(
    ("source", "prints"),
    [
        ("import builtins", True),
        ("builtins.print = quiet", False),
        ("def print(*args): pass", False),
        ("from rich import print", False),
    ],
)
def test_a_print_of_the_programs_own_may_be_for_rank_0(source: str, prints: bool) -> None:
    assert OffRootFollower(ast.parse(source), "train.py").prints is prints
