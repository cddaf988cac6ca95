"""What the columns of a recording may hold: a recording is not trusted.

`check_blocks` is asked once by the decoder, when all that events refer to has been read;
whoever reads a `Recording` may then follow every number in it. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from phalanx.journal.events import KINDS

if TYPE_CHECKING:
    from phalanx.journal.recording.decoder import EventBlock, Recording

LARGEST_NUMBER = 1 << 60
"""Of times, serials and the like: what is larger does not fit into a column of 64 bits."""
MOST_ELEMENTS = 1 << 56
"""Of a tensor."""

_NUMBERS = ("thread", "member", "serial")
_NUMBERS_OR_NONE = (
    *("number", "tag", "batch", "device", "source", "root", "peer", "amount", "proves"),
)
_TEXTS = ("name", "how", "about", "key", "shown", "severity", "error", "use")
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


def _values(column: Sequence[Any]) -> Sequence[Any]:
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
    ends = (values[0], values[-1]) if isinstance(values, range) else values
    numbers = [number for number in ends if number is not None]
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
        if None in (values := _values(block[name])) and len(set(values)) == 1:
            continue
        for group, place in set(zip(block["group"], block[name], strict=True)):
            members = recording.groups[group].ranks
            if place is not None and not (0 <= place < len(members) and members[place] < ranks):
                _refuse(block.kind, block.rank, name)


def _check_calls(recording: Recording, block: EventBlock, fields: Sequence[str]) -> None:
    kind, rank = block.kind, block.rank
    if "call" in fields:
        found = [call for call in _values(block["call"]) if call is not None]
        if not _are_calls(found, recording.ranks):
            _refuse(kind, rank, "call")
    if kind == "group-destroyed":
        _check_numbers(block, "calls", {int}, _ANY)
    elif "calls" in fields:
        _check_types(block, "calls", {list, tuple})
        pairs = list(chain.from_iterable(_values(block["calls"])))
        if not _are_calls(pairs, recording.ranks):
            _refuse(kind, rank, "calls")
    if kind == "finding-made":
        _check_types(block, "ranks", {list, tuple, _NOTHING})
        if not all(map(_is_number, chain.from_iterable(filter(None, _values(block["ranks"]))))):
            _refuse(kind, rank, "ranks")


def _are_calls(given: Sequence[Any], ranks: int) -> bool:
    """Pairs of a rank and a serial. Most events have one: no function of ours for each."""
    if not set(map(type, given)) <= {list, tuple} or not set(map(len, given)) <= {2}:
        return False
    numbers = list(chain.from_iterable(given))
    if not set(map(type, numbers)) <= {int}:
        return False
    owners, serials = numbers[::2], numbers[1::2]
    return not numbers or (
        min(owners) >= 0
        and max(owners) < ranks
        and min(serials) > -LARGEST_NUMBER
        and max(serials) < LARGEST_NUMBER
    )


def _is_number(given: Any) -> bool:
    return type(given) is int and -LARGEST_NUMBER < given < LARGEST_NUMBER


def _refuse(kind: str, rank: int, name: str) -> NoReturn:
    raise ValueError(f"{name} of {kind} events of rank {rank} is nothing that can be there")
