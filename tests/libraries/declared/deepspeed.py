"""Programs that use DeepSpeed, which compiles a module for CPUs when it is first used."""

from __future__ import annotations

from functools import partial

from tests.libraries.model import Program

deepspeed = partial(Program, "deepspeed", compare="results", limit=300)

PROGRAMS: tuple[Program, ...] = (
    deepspeed("deepspeed_comm.py", ranks=4),
    deepspeed("deepspeed_zero.py", ranks=4),
    deepspeed("deepspeed_checkpoint.py", ranks=2),
    deepspeed("deepspeed_pipeline.py", ranks=4),
)
