"""Let the ranks of a group compare their values. Used by the assertions between ranks.

There are three steps, and usually only the first is needed: all ranks exchange one digest of
everything. If the digests differ, they exchange a description and a digest of each leaf, so
that different shapes and structures are found without a collective that would mix them up. Only
leaves with equal descriptions and different contents are sent: one rank sends its own, and the
others compare in place and report how they differ.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.errors import UsageError
from phalanx.model import rank_list
from phalanx.testing.agreement.leaves import MISSING, Leaf, bytes_of, short_reprs
from phalanx.testing.agreement.tensor_elements import compare_elements
from phalanx.testing.agreement.value_differences import Difference, Side


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may be apart: `atol + rtol * |the other|`, as in torch."""

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        if not (self.rtol >= 0 and self.atol >= 0):
            raise UsageError(
                f"rtol={self.rtol!r}, atol={self.atol!r}: tolerances are numbers from 0 on"
            )

    def covers(self, one: Any, other: Any) -> bool:
        """Whether two values that are no tensors count as the same."""
        if isinstance(one, float) and one != one:
            return isinstance(other, float) and other != other
        if isinstance(one, (float, complex)) and isinstance(other, (float, complex)):
            return one == other or abs(one - other) <= self.atol + self.rtol * abs(other)
        try:
            return bool(one == other)
        except Exception:
            return False


class Members:
    """The ranks that take part, and how they exchange values. Each assertion makes a new one.
    All methods communicate, so they may block."""

    def __init__(self, check: str, group: Any = None) -> None:
        if not dist.is_initialized():
            raise UsageError(
                f"{check} compares ranks, and there is no process group here: call it in a "
                "test with @pytest.mark.ranks, in phalanx.run, or after init_process_group"
            )
        if callable(getattr(group, "get_group", None)):  # a DeviceMesh of one dimension
            group = group.get_group()
        self.check = check
        self.group = group
        self.taking_part = dist.get_rank(group) >= 0
        self.ranks = dist.get_process_group_ranks(group) if self.taking_part else []

    def gather(self, value: Any) -> dict[int, Any]:
        """The value of every rank, by global rank."""
        gathered: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(gathered, value, group=self.group)
        return dict(zip(self.ranks, gathered, strict=True))

    def gather_from(self, make: Callable[[], Any]) -> dict[int, Any]:
        """Like `gather`. If a rank raises while it computes its value, or calls another
        assertion than the others, all ranks raise."""
        error: Exception | None = None
        value = None
        try:
            value = make()
        except Exception as raised:
            error = raised
        found = self.gather((self.check, value, error and f"{type(error).__name__}: {error}"))
        called = {rank: check for rank, (check, _, _) in found.items()}
        if len(set(called.values())) > 1:
            said = ", ".join(f"{rank_list(ranks)} {check}" for check, ranks in alike(called))
            raise UsageError(f"the ranks called different assertions: {said}")
        failed = alike({rank: text for rank, (_, _, text) in found.items() if text})
        if failed:
            text, ranks = failed[0]
            raise UsageError(f"{self.check} failed on {rank_list(ranks)}: {text}") from error
        return {rank: value for rank, (_, value, _) in found.items()}

    def broadcast(self, tensor: Tensor, *, source: int, devices: set[str]) -> Tensor:
        """The source's tensor, on all ranks. The other ranks' tensors have its shape and
        type, and are on one of `devices`. It is sent as bytes, because no backend takes
        every dtype."""
        place = self._device_for(tensor, devices)
        sent = bytes_of(tensor).to(place, copy=True)  # theirs are written over
        if sent.numel():
            dist.broadcast(sent, src=source, group=self.group)
        return sent.to(tensor.device).view(tensor.dtype).reshape(tensor.shape)

    def _device_for(self, tensor: Tensor, devices: set[str]) -> torch.device:
        """The same kind on all ranks, and one that the group's backend has: the tensors' own
        if it can be."""
        config = dist.get_backend_config(self.group)
        kinds = [part.partition(":")[0] for part in config.split(",")]
        if devices == {tensor.device.type} and tensor.device.type in kinds:
            return tensor.device
        return torch.device("cpu" if "cpu" in kinds else kinds[0])


class _Row(NamedTuple):
    """A rank's description of a leaf."""

    what: str
    digest: str = ""
    device: str = ""


def _row(leaf: Leaf) -> _Row:
    device = leaf.tensor.device.type if leaf.tensor is not None else ""
    return _Row(leaf.what, leaf.digest, device)


def find_differences(
    members: Members, leaves: Callable[[], Iterable[Leaf]], tolerance: Tolerance
) -> tuple[list[Difference], int]:
    """The differences, equal on all ranks, and the number of places compared."""
    own: dict[str, Leaf] = {}

    def digest_all() -> str:
        for leaf in leaves():
            path = _new_path(leaf.path, own)
            own[path] = leaf if path == leaf.path else replace(leaf, path=path)
        text = "\n".join(f"{leaf.path}\0{leaf.what}\0{leaf.digest}" for leaf in own.values())
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    if len(set(members.gather_from(digest_all).values())) == 1:
        return [], len(own)
    tables = members.gather({leaf.path: _row(leaf) for leaf in own.values()})
    paths = list(dict.fromkeys(path for table in tables.values() for path in table))
    differences: list[Difference] = []
    for path in paths:
        if any(_is_inside(path, found.path) for found in differences if _is_structure(found)):
            continue  # the container differs, which says it all
        row = {rank: table.get(path, _Row(MISSING)) for rank, table in tables.items()}
        found = _compare_leaf(members, path, row, own.get(path), tolerance)
        if found is not None:
            differences.append(found)
    return differences, len(paths)


def _new_path(path: str, taken: Container[str]) -> str:
    """Keys of a dict may look alike: the second is `x[a] (2)`."""
    if path not in taken:
        return path
    return next(new for i in count(2) if (new := f"{path} ({i})") not in taken)


def _is_inside(path: str, container: str) -> bool:
    return path.startswith(container) and path[len(container) :][:1] in (".", "[")


def _is_structure(difference: Difference) -> bool:
    return not difference.what


def _compare_leaf(
    members: Members,
    path: str,
    row: Mapping[int, _Row],
    own: Leaf | None,
    tolerance: Tolerance,
) -> Difference | None:
    kinds = alike({rank: told.what for rank, told in row.items()})
    if len(kinds) > 1:
        return Difference(path, "", tuple(Side(ranks, what) for what, ranks in kinds))
    digests = alike({rank: told.digest for rank, told in row.items()})
    if len(digests) == 1:
        return None
    assert own is not None  # all ranks have the same kind of thing there
    usual = digests[0][1][0]
    if own.tensor is None:
        return _compare_values(members, own, tolerance, usual)
    devices = {told.device for told in row.values()}
    reference = members.broadcast(own.tensor, source=usual, devices=devices)
    return _compare_tensors(members, own, tolerance, reference)


def _compare_values(
    members: Members, leaf: Leaf, tolerance: Tolerance, usual: int
) -> Difference | None:
    values = members.gather(leaf.value)
    same = {
        rank: rank == usual or tolerance.covers(value, values[usual])
        for rank, value in values.items()
    }
    if all(same.values()):
        return None
    agreeing = tuple(rank for rank, is_same in same.items() if is_same)
    odd = alike({rank: repr(values[rank]) for rank in values if not same[rank]})
    groups = [agreeing, *(ranks for _, ranks in odd)]
    texts = short_reprs([values[usual], *(values[ranks[0]] for ranks in groups[1:])])
    sides = [Side(ranks, text) for ranks, text in zip(groups, texts, strict=True)]
    return Difference(leaf.path, leaf.what, tuple(sides), note=leaf.note)


def _compare_tensors(
    members: Members, leaf: Leaf, tolerance: Tolerance, reference: Tensor
) -> Difference | None:
    assert leaf.tensor is not None
    told = members.gather(
        compare_elements(leaf.tensor, reference, rtol=tolerance.rtol, atol=tolerance.atol)
    )
    agreeing = tuple(rank for rank, found in told.items() if found is None)
    if len(agreeing) == len(told):
        return None
    odd = alike({rank: found for rank, found in told.items() if found is not None})
    sides = [Side(agreeing, "what most ranks have")]
    sides += [Side(ranks, found.text, found.notes) for found, ranks in odd]
    return Difference(leaf.path, leaf.what, tuple(sides), by_elements=True, note=leaf.note)


def alike(by_rank: Mapping[int, Any]) -> list[tuple[Any, tuple[int, ...]]]:
    """Each value with its ranks: the most ranks first, among equals the lowest rank.

    >>> alike({0: "a", 1: "b", 2: "b"})
    [('b', (1, 2)), ('a', (0,))]
    """
    ranks: defaultdict[Any, list[int]] = defaultdict(list)
    for rank, value in sorted(by_rank.items()):
        ranks[value].append(rank)
    ordered = sorted(ranks.items(), key=lambda pair: (-len(pair[1]), pair[1][0]))
    return [(value, tuple(found)) for value, found in ordered]
