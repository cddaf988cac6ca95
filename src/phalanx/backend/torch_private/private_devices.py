"""Private torch names that concern devices.

A part of `private.py`, under the same rule: the name, the reason, the versions. Used by
`one_rank_assumptions.py`, once per process, and by the modules that map the devices that ranks
name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# 2.11-2.13: what `Module.to` makes of its arguments; a function mode sees this call.
PARSE_TO: Any = torch._C._nn._parse_to


# 2.11-2.13: the number that the driver has for the current stream of a device, in a tenth of
# the time that a `torch.cuda.Stream` takes to be made. Builds without CUDA have no such name.
current_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: 0
)


def index_readers() -> list[tuple[Any, str]]:
    """2.11-2.13: where functions of `torch.cuda` and `torch.accelerator`, and `torch.load`,
    turn what they were given into the number of a device: the owners of one function each, by
    the name under which they call it."""
    name = "_get_device_index"
    owners = ["cuda", "cuda._utils", "cuda.memory"]
    owners += ["accelerator", "accelerator._utils", "accelerator.memory"]
    found = []
    for path in owners:
        owner: Any = torch
        for part in path.split("."):
            owner = getattr(owner, part, None)
        if owner is not None and hasattr(owner, name):
            found.append((owner, name))
    return found


@cache
def keep_cuda_guard() -> None:
    """2.11-2.13: have this thread, which outlives the ranks, make the guard of fake tensors.

    A build for CUDA that finds no GPU replaces its device guard by an empty one, on first use
    of `FakeTensorMode` (hence of `torch.compile`). It belongs to the thread that made it: once
    that has ended, the next use in another thread takes the process down (2.11). The driver
    itself is asked, because `is_available` may have another answer for ranks."""
    make: Any = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    count: Any = getattr(torch._C, "_cuda_getDeviceCount", None)
    if make is not None and count is not None and not count():
        make()
