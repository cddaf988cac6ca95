"""Programs that use deepspeed."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = ()
