"""Programs that use torchtitan."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = (
    Program("torchtitan", "torchtitan_parallel_dims.py", ranks=8),
    Program("torchtitan", "torchtitan_llama3.py", ranks=4, args=("full_dtensor",)),
    Program("torchtitan", "torchtitan_llama3.py", ranks=4, args=("partial_dtensor",)),
    Program("torchtitan", "torchtitan_pipeline.py", ranks=4, args=("1F1B",)),
    Program("torchtitan", "torchtitan_pipeline.py", ranks=4, args=("Interleaved1F1B",)),
)
