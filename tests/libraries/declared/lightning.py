"""Programs that use lightning."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = (
    Program("lightning", "lightning_fabric.py", ranks=2),
    Program("lightning", "lightning_fabric.py", ranks=4),
    Program("lightning", "lightning_trainer.py", ranks=2),
    Program("lightning", "lightning_trainer.py", ranks=4),
    Program("lightning", "lightning_callbacks.py", ranks=2),
    Program("lightning", "lightning_callbacks.py", ranks=4),
    Program("lightning", "lightning_fsdp.py", ranks=2),
    Program("lightning", "lightning_fsdp.py", ranks=4),
    Program("lightning", "lightning_spawn.py", args=("2",), starts_ranks=True, limit=240),
    Program("lightning", "lightning_spawn.py", args=("4",), starts_ranks=True, limit=240),
)
