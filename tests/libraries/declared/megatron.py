"""Programs that use megatron-core."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = (
    Program("megatron-core", "megatron_parallel_state.py", ranks=8),
    Program("megatron-core", "megatron_tensor_parallel.py", ranks=4),
    Program("megatron-core", "megatron_gpt.py", ranks=8),
)
