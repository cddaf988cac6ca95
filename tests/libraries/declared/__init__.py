"""What is run: one module a library, each with its `PROGRAMS`."""

from __future__ import annotations

from tests.libraries.declared import (
    accelerate,
    deepspeed,
    ignite,
    lightning,
    megatron,
    torchmetrics,
    torchtitan,
    transformers,
)
from tests.libraries.model import Program

LIBRARIES = (
    accelerate,
    transformers,
    lightning,
    ignite,
    torchmetrics,
    megatron,
    torchtitan,
    deepspeed,
)

PROGRAMS: tuple[Program, ...] = tuple(
    program for library in LIBRARIES for program in library.PROGRAMS
)
