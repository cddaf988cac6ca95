"""torch's random generators: what a rank needs of them, by private names.

Checked with torch 2.11 (CUDA) and 2.13 (CPU). Used by `emulation/random/`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.cuda.random
import torch.mtia
import torch.xpu.random

_random: Any = torch.cuda.random
_cuda: Any = torch.cuda

# 2.11-2.13: seeds given before CUDA is initialised are put off by this function, which the
# module of the seeding functions has by this name. There is one queue for the process.
LATER_NAME = "_lazy_call"

# 2.11-2.13: initialises CUDA at first use. Called by C++ code by its name in `torch.cuda`, and
# by modules that have imported it.
INIT_NAME = "_lazy_init"

# 2.11-2.13: what `torch.distributions` draws gamma and Dirichlet numbers by; both take torch's
# CPU generator.
PRIVATE_RANDOM = "_standard_gamma _sample_dirichlet"


def later_place() -> tuple[Any, str, Any]:
    """Owner, name, and the present function."""
    return _random, LATER_NAME, getattr(_random, LATER_NAME)


def absent_later_places() -> list[tuple[Any, str]]:
    """2.11-2.13: the functions that defer seeds for other accelerators, of kinds this torch is
    built without. `manual_seed` calls them too, notes the whole stack each time, and the last
    seed stays with the process."""
    found: list[tuple[Any, str]] = []
    for kind, owner in ((torch.xpu, torch.xpu.random), (torch.mtia, torch.mtia)):
        built: Callable[[], bool] | None = getattr(kind, "_is_compiled", None)
        if built is not None and not built() and hasattr(owner, LATER_NAME):
            found.append((owner, LATER_NAME))
    return found


def init_places() -> list[tuple[Any, str, Any]]:
    """2.11-2.13: every module that has the function."""
    original = getattr(_cuda, INIT_NAME)
    modules = (_cuda, _cuda.memory, _random)
    return [
        (module, INIT_NAME, original)
        for module in modules
        if vars(module).get(INIT_NAME) is original
    ]


def cuda_generators() -> tuple[Any, ...]:
    """Those of the process, one for each GPU; none before CUDA is initialised."""
    found: tuple[Any, ...] = _cuda.default_generators
    return found


def share_state(generator: Any) -> Any:
    """2.11-2.13: another generator on the same state: what one draws, the other has drawn."""
    return generator.graphsafe_get_state()


def take_state(generator: Any, other: Any) -> None:
    """2.11-2.13: work on the state of the other generator from now on; the former state is left
    as it is. No copy, and allowed while a CUDA graph is recorded."""
    generator.graphsafe_set_state(other)


def copy_of(generator: Any) -> Any:
    """2.11-2.13: a generator on a copy of the state."""
    return generator.clone_state()


HEAD = 256
"""Bytes from the beginning of a CPU generator in which its engine begins."""
WORDS = 624
TAIL = 24
"""Bytes behind the engine: the normal numbers that are left over from the last draw."""


def look_at_cpu_generator(generator: Any) -> Callable[[], Any] | None:
    """2.11-2.13: a function whose result changes whenever the CPU generator is used. To read
    its state by the public way takes 0.7 us, this a fifth. The engine lies inside of the object
    that `_cdata` points to; a spare generator shows where. None if it is not found, or does not
    behave as expected."""
    place = _engine_place()
    return _look(generator, place) if place is not None else None


def _look(generator: Any, place: int) -> Callable[[], Any]:
    """The position and the first word lie side by side."""
    address = generator._cdata + place
    position = _memory(address - 4, 8).cast("Q")
    tail = _memory(address + 4 * WORDS, TAIL)
    return lambda: (position[0], tail.tobytes())


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


@cache
def _engine_place() -> int | None:
    trial: Any = torch.Generator()
    trial.manual_seed(20260107)
    words = _state_words(trial)[1]
    head = bytes(_memory(trial._cdata, HEAD + 16))
    place = head.find(struct.pack("4I", *words[:4]))
    if place < 16:
        return None
    look = _look(trial, place)
    seen = [look()]
    for draw in (1, 2, 700, 1):
        torch.empty(draw, dtype=torch.int32, device="cpu").random_(generator=trial)
        position, words = _state_words(trial)
        seen.append(look())
        if seen[-1][0] != struct.unpack("Q", struct.pack("2I", position, words[0]))[0]:
            return None
    for _ in range(2):  # the second of two normal numbers comes from the tail
        torch.empty(1, dtype=torch.float64, device="cpu").normal_(generator=trial)
        seen.append(look())
    trial.manual_seed(7)
    seen.append(look())
    return place if len(set(seen)) == len(seen) else None


def _state_words(generator: Any) -> tuple[int, tuple[int, ...]]:
    """The position and the words, as the state that torch hands out has them."""
    raw = bytes(generator.get_state().tolist())
    return struct.unpack_from("Q", raw, 16)[0], struct.unpack_from(f"{WORDS}Q", raw, 24)
