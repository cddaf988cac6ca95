"""Where the loops around a message stood when it was sent or received.

Used by `crossed_messages.py`. Ranks note it for their first messages
(`backend/evidence/order_notes.py`): of many messages on one line nothing else tells one from
another. Ranks in processes do not know the serial of a call: they count their messages, and
note the place in the code too, which the journal has no other way to know (`with_places`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from phalanx.journal.events import CallId, Noted, Place, Posted, site_of
from phalanx.journal.reader import Journal

ABOUT = "crossed-messages"
"""What the notes are called."""


@dataclass(frozen=True)
class Loops:
    """`item` is the tensor as it lies in a dict under the word that a loop is at,
    `state['bias']`. `values` are those of the loops' variables, by function and name. `tensor`
    is the tensor's identity: two messages with the same one cannot be swapped. `part` is what a
    module calls the tensor that a loop is at, `Sequential.1.running_mean`."""

    item: str | None
    values: dict[tuple[str, str], int | str]
    tensor: int = 0
    part: str | None = None


NO_LOOPS = Loops(None, {})


def loops_of(journal: Journal) -> dict[Any, Loops]:
    """What was noted, by call."""
    found: dict[Any, Loops] = {}
    for call, event in _noted(journal):
        _, tensor, levels, *parts = event.what
        item: str | None = None
        values: dict[tuple[str, str], int | str] = {}
        for place, names, loop, *_ in levels:
            if not isinstance(place, tuple):
                continue  # a recording has no code: words of loops and arguments look alike
            code: CodeType = place[0]
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            for name, value in loop:
                if name in given:
                    continue
                values[code.co_name, name] = value
                if isinstance(value, str) and item is None:
                    ending = f"[{value!r}]"
                    item = next((each for each in names if each.endswith(ending)), None)
        found[call] = Loops(item, values, tensor, *parts)
    return found


def with_places(journal: Journal) -> Journal:
    """The same journal, with the place in the code instead of the line of each message whose
    rank noted it. The journal of threads has it already."""
    if journal.in_order:
        return journal
    marks = {call: event.mark for call, event in _noted(journal)}
    return journal.with_marks(marks) if marks else journal


def _noted(journal: Journal) -> Iterator[tuple[CallId, Noted]]:
    """What was noted, with the call that it is about."""
    messages: dict[int, list[Posted]] = {}
    for event in journal.noted(ABOUT):
        rank, number = event.rank, event.what[0]
        if journal.in_order:
            yield (rank, number), event
            continue
        if rank not in messages:
            messages[rank] = _messages_of(journal, rank)
        own = messages[rank]
        if number < len(own) and _is_at(own[number], event.mark):
            yield own[number].call, event


def _messages_of(journal: Journal, rank: int) -> list[Posted]:
    """All messages that a rank sent or received; none if several threads did, whose order is
    not known, or if the journal has forgotten some."""
    own = [call for call in journal.calls(rank) if call.is_message]
    is_whole = journal.has_all_calls() and len({call.thread for call in own}) < 2
    return own if is_whole else []


def _is_at(call: Posted, mark: Place) -> bool:
    """Whether the call is at this place: a call that was refused is counted, and not posted;
    and the source may be on another machine."""
    return call.site == site_of(mark)
