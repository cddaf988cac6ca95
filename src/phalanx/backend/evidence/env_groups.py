"""Note for the check `message-race` where a script makes its default group again by `env://`.

Under torchrun that leads to the store of its agent, which outlives `destroy_process_group`: the
keys of the first group are still there, under the same names. Here each group has keys of its
own, so the note is all that can be seen. A program that sets another address in between has
another store. Functions and tests are not started by torchrun, and nothing is noted for them.
Deciding is done in `checks/store_race.py`.
"""

from __future__ import annotations

import os
import re
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.backend.torch_private.private_names import init_method_of
from phalanx.checks.store_race import KIND
from phalanx.journal.events import Noted
from phalanx.journal.writer import NoteWriter

SCRIPT = "runs a script"
"""The key under which a rank's saved state says so."""

_MADE = "groups by env://"


class ScriptProcess:
    """Whether this process is a rank that runs a script."""

    is_script = False


def note_default_group(
    writer: NoteWriter, saved: dict[str, Any], frame: FrameType, backend: str
) -> None:
    """A rank makes its default group; `frame` is that of `init_process_group`."""
    if not (ScriptProcess.is_script or saved.get(SCRIPT)) or init_method_of(frame) != "env://":
        return
    mark = callsite.mark_of(frame)
    address = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    made: dict[Any, list[tuple[Any, set[str]]]] = saved.setdefault(_MADE, {})
    made_there = made.setdefault(address, [])
    devices = _devices(backend)
    before = next((at for at, its in made_there if its & devices), None)
    if before is not None:
        writer.ring.add(Noted(writer.now(), writer.rank, 0, mark, KIND, before))
    else:
        made_there.append((mark, devices))


def _devices(backend: str) -> set[str]:
    """Whose keys it has: those of Gloo and of NCCL have different names."""
    named = {each for each in ("gloo", "nccl") if re.search(each, backend.lower())}
    return named or {"gloo", "nccl"}
