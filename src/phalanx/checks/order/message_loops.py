"""Where the loops around a message stood when it was sent or received.

Used by `crossed_messages.py`. Ranks in threads note it for their first messages
(`backend/evidence/order_notes.py`): of many messages on one line nothing else tells one from
another. Ranks in processes do not, so their loops say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any

from phalanx.journal.reader import Journal

ABOUT = "crossed-messages"
"""What the notes are called."""


@dataclass(frozen=True)
class Loops:
    """`item` is the tensor as it lies in a dict under the word that a loop is at,
    `state['bias']`. `values` are those of the loops' variables, by function and name. `tensor`
    is the tensor's identity: two messages with the same one cannot be swapped."""

    item: str | None
    values: dict[tuple[str, str], int | str]
    tensor: int = 0


NO_LOOPS = Loops(None, {})


def loops_of(journal: Journal) -> dict[Any, Loops]:
    """What was noted, by call."""
    found: dict[Any, Loops] = {}
    for event in journal.noted(ABOUT):
        serial, tensor, levels = event.what
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
        found[event.rank, serial] = Loops(item, values, tensor)
    return found
