"""torch's random generators for CUDA: what a rank needs of them, by private names.

Checked with torch 2.11 (CUDA) and 2.13 (CPU). Used by `running/isolation/cuda_randomness.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.cuda.random

_random: Any = torch.cuda.random
_cuda: Any = torch.cuda

# 2.11-2.13: seeds given before CUDA is initialised are put off by this function, which the
# module of the seeding functions has by this name. There is one queue for the process.
LATER_NAME = "_lazy_call"

# 2.11-2.13: initialises CUDA at first use. Called by C++ code by its name in `torch.cuda`, and
# by modules that have imported it.
INIT_NAME = "_lazy_init"


def later_place() -> tuple[Any, str, Any]:
    """Owner, name, and what is there."""
    return _random, LATER_NAME, getattr(_random, LATER_NAME)


def init_places() -> list[tuple[Any, str, Any]]:
    """Wherever the function is known."""
    original = getattr(_cuda, INIT_NAME)
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("torch.cuda") and vars(module).get(INIT_NAME) is original
    ]
    return [(module, INIT_NAME, original) for module in modules]


def cuda_generators() -> tuple[Any, ...]:
    """Those of the process, one for each GPU; none before CUDA is initialised."""
    found: tuple[Any, ...] = _cuda.default_generators
    return found


def share_state(generator: Any) -> Any:
    """2.11-2.13: another generator on the same state: what one draws, the other has drawn."""
    return generator.graphsafe_get_state()


def take_state(generator: Any, other: Any) -> None:
    """2.11-2.13: from now on work on the state of the other one; the former is left as it is.
    No copy, and allowed while a CUDA graph is recorded."""
    generator.graphsafe_set_state(other)


def copy_of(generator: Any) -> Any:
    """2.11-2.13: a generator on a copy of the state."""
    return generator.clone_state()
