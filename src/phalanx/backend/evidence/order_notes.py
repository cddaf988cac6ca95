"""Note for the check `crossed-order` what the user's frames say about some calls of each group.

`note` is called for the same calls on every rank, the first few of each `PERIOD`;
`note_message` for the first messages of each rank. Deciding is done in
`checks/order/crossed_order.py` and `crossed_messages.py`.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from phalanx.backend.evidence.frame_reader import Reading, part_of_model, read_frames
from phalanx.backend.torch_private.private_names import frame_of_program
from phalanx.checks.order.crossed_order import KIND
from phalanx.checks.order.message_loops import ABOUT
from phalanx.journal.events import Noted, make
from phalanx.journal.writer import NoteWriter
from phalanx.matching.slots import Call

PERIOD = 4096
"""Of so many calls on a group the first `session.watched` are noted. A power of two."""
LEVELS = 3
MESSAGES = 256
DULL = 32
"""After how many calls of one place that tell nothing new, by all ranks of this process, the
place is left alone for the rest of a period."""


def note(writer: NoteWriter, call: Call) -> None:
    """Read the frames of this call; its mark and number must be known."""
    tensor = _tensor_of(call)
    mark = call.mark
    if tensor is None or mark is None:
        return
    frame, module = frame_of_program(sys._getframe(1))
    dull, place = call.mailbox.dull_places, (id(mark[0]), mark[1])
    number: int = call.number  # type: ignore[assignment]
    seen, period = dull.get(place), number // PERIOD
    levels: tuple[Reading, ...] | None = None
    if seen is None or seen[1] < DULL or seen[2] != period:
        levels = read_frames(frame, tensor, most=LEVELS)
        telling = _telling(levels)
        if seen is None or seen[0] != telling or seen[2] != period:
            dull[place] = [telling, 0, period]
        else:
            seen[1] += 1
    elif module is None:
        return
    called = (call.name, None if call.op is None else call.op[0], call.root)
    what = (number, called, levels, module)
    event = (writer.now(), writer.rank, 0, mark, KIND, what, call.mailbox.record)
    writer.ring.note(make(Noted, event))


def note_message(
    writer: NoteWriter, call: Call, *, is_on: bool, with_place: bool = False
) -> None:
    """Read the frames of a send or receive, of a rank's first few; its serial must be known.
    Only those in loops are noted, with what a module calls the tensor if the loop goes through
    tensors; `with_place`: all, because their place in the code is not
    known otherwise."""
    taken = writer.looks.get(ABOUT, 0) if is_on else MESSAGES
    tensor = _tensor_of(call)
    if taken >= MESSAGES or tensor is None or call.batch is not None:
        return
    writer.looks[ABOUT] = taken + 1
    frame, _ = frame_of_program(sys._getframe(1))
    levels = read_frames(frame, tensor, most=LEVELS)
    if with_place or any(loop or swept for _, _, loop, swept, _ in levels):
        part = None
        if any(swept or tied for *_, swept, tied in levels):
            part = part_of_model(frame, tensor, most=LEVELS)
        what = (call.serial, id(tensor), levels, part)
        event = (writer.now(), writer.rank, 0, call.mark, ABOUT, what, call.mailbox.record)
        writer.ring.note(make(Noted, event))


def _telling(levels: tuple[Reading, ...]) -> list[Any]:
    """What tells one call at a place from another."""
    found: list[Any] = []
    for place, names, loop, _, _ in levels:
        if names:
            found.append((place, names))
        found += [value for _, value in loop if type(value) is str]
    return found


def _tensor_of(call: Call) -> Any:
    """The tensor by which the program would name this call."""
    for given in (call.inputs, call.outputs):
        if given and isinstance(given[0], Tensor):
            return given[0]
    return None
