"""Assertions between ranks: the checks that distributed tests write by hand.

Every rank of the group calls the same one, as with a collective. They communicate, compare,
and raise the same error on every rank, so no rank is left waiting in the next collective.
They need a process group and nothing else of ours: they also work under torchrun. Ranks
outside `group` return at once. Users find these names in `phalanx.testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.errors import UsageError
from phalanx.model import rank_list
from phalanx.report.layout import count, verb
from phalanx.testing.agreement.exchange import Members, Tolerance, alike, find_differences
from phalanx.testing.agreement.leaves import Leaf, short_repr, take_apart, tensor_leaves
from phalanx.testing.agreement.value_differences import (
    Difference,
    RanksDisagreeError,
    Side,
    render_differences,
    render_sides,
)


def assert_same_on_all_ranks(
    value: Any, *, group: Any = None, rtol: float = 0, atol: float = 0, name: str | None = None
) -> None:
    """Assert that every rank has the same value: a tensor, a number, a string, or containers,
    dataclasses and modules of these. NaN equals NaN. The tolerances compare with the value
    that most ranks have. The error calls the value `name`.

    >>> import phalanx, torch.distributed as dist
    >>> def program():
    ...     assert_same_on_all_ranks(dist.get_rank() // 3, name="node")
    >>> phalanx.run(program, ranks=4)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    phalanx.RankFailedError: ... node differs: rank 3 has 1, ranks 0-2 have 0
    """
    __tracebackhide__ = True
    members = Members("assert_same_on_all_ranks", group)
    if members.taking_part:
        subject = name or "value"
        _check(members, subject, lambda: take_apart(value, subject), Tolerance(rtol, atol))


def assert_different_on_all_ranks(
    value: Any, *, group: Any = None, name: str | None = None
) -> None:
    """Assert that no two ranks have the same value: seeds, random numbers, batches."""
    __tracebackhide__ = True
    members = Members("assert_different_on_all_ranks", group)
    if not members.taking_part:
        return
    subject = name or "value"

    def describe() -> tuple[tuple[tuple[str, str], ...], str]:
        leaves = tuple((leaf.what, leaf.digest) for leaf in take_apart(value, subject))
        return leaves, leaves[0][0] if isinstance(value, Tensor) else short_repr(value)

    found = alike(members.gather_from(describe))
    shared = [Side(ranks, text) for (_, text), ranks in found if len(ranks) > 1]
    if shared:
        first = shared[0]
        headline = (
            f"{subject} is the same on {rank_list(first.ranks)} ({first.text}), where every "
            "rank should have its own"
        )
        sides = [Side(ranks, text) for (_, text), ranks in found]
        raise RanksDisagreeError(
            render_sides(headline, sides), [Difference(subject, "", tuple(shared))]
        )


def assert_replicas_in_sync(
    model: nn.Module,
    *,
    group: Any = None,
    buffers: bool = True,
    gradients: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    rtol: float = 0,
    atol: float = 0,
) -> None:
    """Assert that every rank has the same parameters and buffers, on request also the same
    gradients and optimizer state. Where parameters are sharded, `group` holds the replicas.
    """
    __tracebackhide__ = True
    members = Members("assert_replicas_in_sync", group)
    if not members.taking_part:
        return

    def leaves() -> Iterator[Leaf]:
        for name, parameter in model.named_parameters():
            yield from tensor_leaves(parameter, name)
        if buffers:
            for name, buffer in model.named_buffers():
                yield from tensor_leaves(buffer, name)
        if gradients:
            yield from _gradients(model)
        if optimizer is not None:
            yield from _optimizer_state(model, optimizer)

    _check(members, "the replicas", leaves, Tolerance(rtol, atol), entries="entries")


def assert_gradients_in_sync(
    model: nn.Module, *, group: Any = None, rtol: float = 0, atol: float = 0
) -> None:
    """Assert that every rank has the same gradients, and none where others have none."""
    __tracebackhide__ = True
    members = Members("assert_gradients_in_sync", group)
    if members.taking_part:
        tolerance = Tolerance(rtol, atol)
        _check(members, "the model", lambda: _gradients(model), tolerance, entries="gradients")


def assert_shards_disjoint(indices: Iterable[Any], *, group: Any = None) -> None:
    """Assert that no item is on two ranks, nor twice on one: indices, names of files."""
    __tracebackhide__ = True
    members = Members("assert_shards_disjoint", group)
    if not members.taking_part:
        return
    shards = members.gather_from(lambda: _items(indices))
    holders = _holders(shards)
    shared = {item: ranks for item, ranks in holders.items() if len(ranks) > 1}
    if not shared:
        return
    item, ranks = next(iter(shared.items()))
    where = rank_list(ranks)
    if len(set(ranks)) == 1:
        where = f"rank {ranks[0]}, {len(ranks)} times"
    headline = (
        f"the shards overlap: {len(shared)} of {count(len(holders), 'item')} "
        f"{'is' if len(shared) == 1 else 'are'} there more than once, first {item!r} on {where}"
    )
    raise RanksDisagreeError(render_sides(headline, _shard_sides(shards)))


def assert_shards_cover(
    indices: Iterable[Any], total: int | Iterable[Any], *, group: Any = None
) -> None:
    """Assert that the ranks together have every index below `total`, or every item of it, and
    nothing else. Some may be there twice; `assert_shards_disjoint` asserts the contrary."""
    __tracebackhide__ = True
    members = Members("assert_shards_cover", group)
    if not members.taking_part:
        return
    wanted = range(total) if isinstance(total, int) else _items(total)
    shards = members.gather_from(lambda: _items(indices))
    holders = _holders(shards)
    missing = [item for item in wanted if item not in holders]
    known = set(wanted)
    foreign = {item: ranks for item, ranks in holders.items() if item not in known}
    if missing:
        number = f"{len(missing)} of {count(len(wanted), 'item')}"
        headline = f"the shards leave out {number}, first {missing[0]!r}"
    elif foreign:
        item, ranks = next(iter(foreign.items()))
        holds = f"{rank_list(ranks)} {verb(ranks, 'has', 'have')} item {item!r}"
        allowed = f"in range({total})" if isinstance(total, int) else "to be covered"
        headline = f"{holds}, which is not {allowed}"
    else:
        return
    raise RanksDisagreeError(render_sides(headline, _shard_sides(shards)))


def parallel_assert(
    condition: bool | Callable[[], Any],
    message: str = "",
    *,
    participating: bool = True,
    group: Any = None,
) -> None:
    """Assert on all ranks at once: if the condition fails on any rank, all ranks raise, so no
    rank waits for one that has failed. A rank with `participating=False` is not asked. A
    condition that is a function is called, and what it raises counts as failure. The name is
    mpi-pytest's.
    """
    __tracebackhide__ = True
    members = Members("parallel_assert", group)
    if not members.taking_part:
        return
    found = members.gather_from(lambda: _judge(condition, message) if participating else "")
    failed = {rank: text for rank, text in found.items() if text}
    if failed:
        text = alike(failed)[0][0]
        headline = f"assertion failed on {rank_list(failed)} of {len(found)} ranks: {text}"
        sides = [Side(ranks, text) for text, ranks in alike(failed)]
        fine = tuple(rank for rank in found if rank not in failed)
        sides += [Side(fine, "held, or did not participate")] if fine else []
        raise RanksDisagreeError(render_sides(headline, sides))


def _check(
    members: Members,
    subject: str,
    leaves: Callable[[], Iterable[Leaf]],
    tolerance: Tolerance,
    *,
    entries: str = "places",
) -> None:
    __tracebackhide__ = True
    differences, total = find_differences(members, leaves, tolerance)
    if differences:
        text = render_differences(subject, differences, total=total, entries=entries)
        raise RanksDisagreeError(text, differences)


def _gradients(model: nn.Module) -> Iterator[Leaf]:
    for name, parameter in model.named_parameters():
        path = f"gradient of {name}"
        if parameter.grad is None:
            yield Leaf(path, "no gradient")
        else:
            yield from tensor_leaves(parameter.grad, path)


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Leaf]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for number, settings in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(settings["params"]):
            name = names.get(id(parameter), f"parameter {place} of group {number}")
            for key, value in optimizer.state.get(parameter, {}).items():
                yield from take_apart(value, f"optimizer's {key} of {name}")
        for key, value in settings.items():
            if key != "params":
                yield from take_apart(value, f"optimizer's {key} of group {number}")


def _items(indices: Iterable[Any]) -> list[Any]:
    items = indices.tolist() if isinstance(indices, Tensor) else list(indices)
    if not isinstance(items, list):
        raise UsageError(f"give the items of this rank's shard as a list, not {indices!r}")
    return [item.item() if isinstance(item, Tensor) else item for item in items]


def _holders(shards: Mapping[int, list[Any]]) -> dict[Any, list[int]]:
    """Which ranks have each item; a rank that has it twice is there twice."""
    holders: dict[Any, list[int]] = {}
    for rank in sorted(shards):
        for item in shards[rank]:
            holders.setdefault(item, []).append(rank)
    return holders


def _shard_sides(shards: Mapping[int, list[Any]]) -> list[Side]:
    return [
        Side(ranks, _shard_text(shards[ranks[0]]))
        for _, ranks in sorted(
            alike({rank: repr(items) for rank, items in shards.items()}),
            key=lambda pair: pair[1],
        )
    ]


def _shard_text(items: list[Any]) -> str:
    return f"{count(len(items), 'item')}: {short_repr(items)}" if items else "no items"


def _judge(condition: bool | Callable[[], Any], message: str) -> str:
    """Why the condition fails, or nothing."""
    said = message or "the condition is false"
    if not callable(condition):
        return "" if condition else said
    try:
        return "" if condition() else said
    except Exception as error:
        return f"{message}: {error!r}" if message else repr(error)
