"""What the columns of a recording may hold: a recording is not trusted.

`check_blocks` is asked once by the decoder, when all that events refer to has been read;
whoever reads a `Recording` may then follow every number in it. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from phalanx.journal.events import KINDS

if TYPE_CHECKING:
    from phalanx.journal.recording.decoder import EventBlock, Recording

LARGEST_NUMBER = 1 << 60
"""Of times, serials and the like: what is larger does not fit into a column of 64 bits."""
MOST_ELEMENTS = 1 << 56
"""Of a tensor."""

_NUMBERS = ("thread", "member", "serial")
_NUMBERS_OR_NONE = ("number", "tag", "batch", "device", "source", "root", "peer")
_TEXTS = ("name", "how", "about", "key", "shown", "severity", "error")
_FLAGS = ("asynchronous", "failed", "met", "default", "by_program", "found")
_NOTHING: type = type(None)
_ANY = range(-LARGEST_NUMBER, LARGEST_NUMBER)


def check_blocks(recording: Recording) -> None:
    """Raise `ValueError` if an event refers to what is not there, or has a value of another
    type."""
    for number, group in recording.groups.items():
        if not all(0 <= rank < LARGEST_NUMBER for rank in group.ranks):
            raise ValueError(f"group {number} has ranks that there cannot be")
    for block in recording.blocks:
        _check_block(recording, block)


def check_tensor(shape: Sequence[int]) -> None:
    """Raise `ValueError` for a shape that no tensor has."""
    elements = 1
    for length in shape:
        if length < 0 or (elements := elements * max(1, length)) > MOST_ELEMENTS:
            raise ValueError(f"a tensor of {len(shape)} dimensions that is too large")


def _check_block(recording: Recording, block: EventBlock) -> None:
    fields = KINDS[block.kind]._fields
    _check_numbers(block, "time", {int}, _ANY)
    for name in set(fields) & {*_NUMBERS, *_NUMBERS_OR_NONE}:
        types: set[type] = {int} if name in _NUMBERS else {int, _NOTHING}
        _check_numbers(block, name, types, _ANY)
    for name in _TEXTS:
        if name in fields:
            _check_types(block, name, {str} if _is_needed(block, name) else {str, _NOTHING})
    for name in _FLAGS:
        if name in fields:
            _check_types(block, name, {bool, int})
    _check_numbers(block, "site", {int, _NOTHING}, range(len(recording.sites)))
    if "signature" in fields:
        _check_numbers(block, "tensors", {int, _NOTHING}, range(len(recording.tensors)))
        _check_types(block, "reduce_op", {int, str, _NOTHING})
    for name in ("group", "world"):
        if name in fields:
            _check_groups(recording, block, name)
    if "peer" in fields:
        _check_places(recording, block)
    _check_calls(recording, block, fields)


def _is_needed(block: EventBlock, name: str) -> bool:
    return block.kind == "posted" and name == "name"


def _values(column: Sequence[Any]) -> Iterable[Any]:
    """Each value of a column once, where that is quick to say."""
    value = getattr(column, "value", column)
    return column if value is column else (value,)


def _check_types(block: EventBlock, name: str, types: set[type]) -> None:
    column = block[name]
    if not isinstance(column, range) and not set(map(type, _values(column))) <= types:
        _refuse(block.kind, block.rank, name)


def _check_numbers(block: EventBlock, name: str, types: set[type], within: range) -> None:
    _check_types(block, name, types)
    values = _values(block[name])
    numbers = values if isinstance(values, range) else [n for n in values if n is not None]
    if numbers and not (within.start <= min(numbers) and max(numbers) < within.stop):
        _refuse(block.kind, block.rank, name)


def _check_groups(recording: Recording, block: EventBlock, name: str) -> None:
    needed = name == "group" and block.kind != "noted"
    _check_types(block, name, {int} if needed else {int, _NOTHING})
    if not {n for n in _values(block[name]) if n is not None} <= recording.groups.keys():
        _refuse(block.kind, block.rank, name)


def _check_places(recording: Recording, block: EventBlock) -> None:
    """`peer` and `root` are places in a group, of a rank that is there."""
    ranks = recording.ranks
    for name in ("peer", "root"):
        for group, place in set(zip(block["group"], block[name], strict=True)):
            members = recording.groups[group].ranks
            if place is not None and not (0 <= place < len(members) and members[place] < ranks):
                _refuse(block.kind, block.rank, name)


def _check_calls(recording: Recording, block: EventBlock, fields: Sequence[str]) -> None:
    ranks = recording.ranks
    if "call" in fields and not all(
        call is None or _is_call(call, ranks) for call in _values(block["call"])
    ):
        _refuse(block.kind, block.rank, "call")
    if "calls" in fields:
        fits: Callable[[Any], bool] = (
            _is_number
            if block.kind == "group-destroyed"
            else (
                lambda calls: (
                    isinstance(calls, (list, tuple))
                    and all(_is_call(call, ranks) for call in calls)
                )
            )
        )
        if not all(map(fits, _values(block["calls"]))):
            _refuse(block.kind, block.rank, "calls")
    if block.kind == "finding-made" and not all(
        each is None or (isinstance(each, (list, tuple)) and all(map(_is_number, each)))
        for each in _values(block["ranks"])
    ):
        _refuse(block.kind, block.rank, "ranks")


def _is_call(given: Any, ranks: int) -> bool:
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        return False
    rank, serial = given
    return _is_number(rank) and 0 <= rank < ranks and _is_number(serial)


def _is_number(given: Any) -> bool:
    return type(given) is int and -LARGEST_NUMBER < given < LARGEST_NUMBER


def _refuse(kind: str, rank: int, name: str) -> NoReturn:
    raise ValueError(f"{name} of {kind} events of rank {rank} is nothing that can be there")
