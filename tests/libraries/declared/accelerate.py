"""Programs that use accelerate, and its own test scripts."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = (
    Program("accelerate", "accelerate_training.py", ranks=2),
    Program("accelerate", "accelerate_training.py", ranks=4),
)
