"""Note for the check `rank-space` which number a program gave for a root: one of the world or
one of the group.

`note` is called for roots whose rank in the world and in the group differ; torch's own frames
tell which of the two was given. A line is noted once for each group. Deciding is done in
`checks/rank_space.py`.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

from phalanx import callsite
from phalanx.backend.evidence.call_description import describe_call
from phalanx.checks.rank_space import KIND, Space
from phalanx.journal.events import Noted
from phalanx.journal.writer import NoteWriter, note_once
from phalanx.matching.slots import Call

_C10D = f"{os.sep}distributed_c10d.py"
_LOGGER = f"{os.sep}c10d_logger.py"


def note(writer: NoteWriter, call: Call) -> None:
    """How the program named the root, if it made the call itself."""
    given = _given(sys._getframe(2))
    if given is None or call.root is None:
        return
    space: Space = "group" if given < 0 else "world"
    number = call.root if given < 0 else given
    record = call.mailbox.record
    key = (KIND, record, call.mark, call.name, space, number)
    if key not in writer.noted:
        what = (space, number, describe_call(call))
        event = Noted(writer.now(), writer.rank, 0, call.mark, KIND, what, record)
        note_once(writer, key, event)


def _given(frame: FrameType | None) -> int | None:
    """The rank of the world that the program gave; -1 if it gave one of the group; None if it
    is not the program that calls."""
    found = -1
    while frame is not None:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            return found
        if file.endswith(_C10D):
            local = frame.f_locals
            for name in ("src", "dst"):
                if isinstance(local.get(name), int):
                    found = local[name]
        elif not callsite.is_own_file(file) and not file.endswith(_LOGGER):
            return None
        frame = frame.f_back
    return None
