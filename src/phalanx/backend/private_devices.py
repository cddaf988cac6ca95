"""The private torch name behind device guards on machines without a GPU.

Another part of `private.py`, under the same rule: the name, the reason, the versions. Used by
`assumptions`, once per process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def keep_cuda_guard() -> None:
    """2.11-2.13: have this thread, which outlives the ranks, make the guard of fake tensors.

    A build for CUDA that finds no GPU replaces its device guard by an empty one, on first use
    of `FakeTensorMode` (hence of `torch.compile`). It belongs to the thread that made it: once
    that has ended, the next use in another thread takes the process down (2.11)."""
    make: Any = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if make is not None and torch.version.cuda and not torch.cuda.is_available():
        make()
