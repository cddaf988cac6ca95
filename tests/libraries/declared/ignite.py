"""Programs that use ignite."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = (
    Program("pytorch-ignite", "ignite_collectives.py", ranks=2),
    Program("pytorch-ignite", "ignite_collectives.py", ranks=4),
    Program("pytorch-ignite", "ignite_train.py", ranks=2, quick=True),
    Program("pytorch-ignite", "ignite_train.py", ranks=4),
    Program("pytorch-ignite", "ignite_spawn.py", args=("2",), starts_ranks=True, limit=240),
    Program("pytorch-ignite", "ignite_spawn.py", args=("4",), starts_ranks=True, limit=240),
)
