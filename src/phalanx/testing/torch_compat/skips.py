"""Skips that are decided inside a rank: the decorators, and the exit codes that carry them.

A rank that is a process says by its exit code why it left. The codes are torch's, because
torch's suites know them; `outcomes.py` reads them. Tests use the decorators under torch's
names.
"""

from __future__ import annotations

import os
import sys
import unittest
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

ACCELERATORS = ("cuda", "hpu", "xpu")
SMALL_WORLD = 8


class TestSkip(NamedTuple):
    """A reason to skip and the exit code that stands for it."""

    exit_code: int
    message: str


TestSkip.__test__ = False  # type: ignore[attr-defined]  # pytest: not a class of tests

TEST_SKIPS = {
    "backend_unavailable": TestSkip(72, "the distributed backend is not available"),
    "small_worldsize": TestSkip(73, f"needs a world of {SMALL_WORLD} ranks or more"),
    "odd_worldsize": TestSkip(87, "needs an even number of ranks"),
    "no_cuda": TestSkip(74, "CUDA is not available"),
    "multi-gpu-1": TestSkip(75, "needs 1 GPU"),
    "multi-gpu-2": TestSkip(77, "needs 2 GPUs"),
    "multi-gpu-3": TestSkip(80, "needs 3 GPUs"),
    "multi-gpu-4": TestSkip(81, "needs 4 GPUs"),
    "multi-gpu-5": TestSkip(82, "needs 5 GPUs"),
    "multi-gpu-6": TestSkip(83, "needs 6 GPUs"),
    "multi-gpu-7": TestSkip(84, "needs 7 GPUs"),
    "multi-gpu-8": TestSkip(85, "needs 8 GPUs"),
    "nccl": TestSkip(76, "torch was built without NCCL"),
    "skipIfRocm": TestSkip(78, "not for ROCm"),
    "no_peer_access": TestSkip(79, "the GPUs have no access to each other's memory"),
    "generic": TestSkip(86, "skipped inside a rank; its output says why"),
    "importerror": TestSkip(88, "a package that the test imports is missing"),
    "no_accelerator": TestSkip(89, "there is no accelerator"),
}


def skip_for_code(code: int) -> TestSkip | None:
    """The skip that an exit code stands for."""
    return next((skip for skip in TEST_SKIPS.values() if skip.exit_code == code), None)


def accelerator_count(*kinds: str) -> int:
    """How many devices there are of the kind that has most."""
    modules = (getattr(torch, kind, None) for kind in kinds or ACCELERATORS)
    counts = (
        each.device_count() for each in modules if each is not None and each.is_available()
    )
    return max(counts, default=0)


def at_least_x_gpu(x: int) -> bool:
    return accelerator_count() >= x


def skip_if_no_gpu(func: F) -> F:
    """Skip unless each rank can have an accelerator of its own; the number of ranks is taken
    from the variable WORLD_SIZE."""

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        count = accelerator_count()
        if not count:
            _leave(TEST_SKIPS["no_cuda"])
        wanted = _world_size_variable("skip_if_no_gpu")
        if count < wanted:
            _leave(gpu_skip(wanted))
        return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def skip_if_small_worldsize(func: F) -> F:
    """Skip below 8 ranks (variable WORLD_SIZE), except with MPI (variable BACKEND)."""
    return _unless_world(func, lambda size: size < SMALL_WORLD, "small_worldsize")


def skip_if_odd_worldsize(func: F) -> F:
    """Skip for an odd number of ranks (WORLD_SIZE), except with MPI (BACKEND)."""
    return _unless_world(func, lambda size: size % 2 == 1, "odd_worldsize")


def _unless_world(func: F, is_wrong: Callable[[int], bool], name: str) -> F:
    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        size = _world_size_variable(f"skip_if_{name}")
        if os.environ.get("BACKEND") != "mpi" and is_wrong(size):
            _leave(TEST_SKIPS[name])
        return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def _world_size_variable(asker: str) -> int:
    given = os.environ.get("WORLD_SIZE", "")
    if not given.isdigit():
        raise ValueError(
            f"{asker} reads the number of ranks from the environment, where WORLD_SIZE is "
            f"{given!r}; set it in setUp, before the ranks start: "
            "os.environ['WORLD_SIZE'] = str(self.world_size)"
        )
    return int(given)


def require_n_gpus_for_nccl_backend(n: int, backend: str) -> Callable[[F], F]:
    """With NCCL, skip below `n` GPUs."""
    return _when(lambda: backend != "nccl" or accelerator_count("cuda") >= n, n)


def skip_if_lt_x_gpu(x: int, *, allow_cpu: bool = False) -> Callable[[F], F]:
    """Skip below `x` accelerators; with `allow_cpu`, run where there are none at all."""

    def is_enough() -> bool:
        count = accelerator_count()
        return count >= x or (allow_cpu and count == 0)

    return _when(is_enough, x, ask=True)


def nccl_skip_if_lt_x_gpu(backend: str, x: int) -> Callable[[F], F]:
    """With NCCL, skip below `x` GPUs. With another backend CUDA is not even looked for."""
    return _when(lambda: backend != "nccl" or accelerator_count("cuda") >= x, x, ask=True)


def _when(is_enough: Callable[[], bool], count: int, *, ask: bool = False) -> Callable[[F], F]:
    def decorator(func: F) -> F:
        @wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_enough():
                return func(*args, **kwargs)
            skip = gpu_skip(count)
            # Suites may define how their class skips.
            handle = getattr(args[0], "_handle_test_skip", None) if ask and args else None
            if handle is None:
                _leave(skip)
            handle(skip.message)
            return None

        return wrapper  # type: ignore[return-value]

    return decorator


def gpu_skip(count: int) -> TestSkip:
    """torch has codes for up to 8."""
    return TEST_SKIPS.get(f"multi-gpu-{count}", TEST_SKIPS["generic"])


def import_transformers_or_skip() -> Callable[[F], F]:
    """Skip where the package transformers, or something it imports, is missing."""

    def decorator(func: F) -> F:
        @wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                transformers = import_module("transformers")
                transformers.AutoModelForMaskedLM, transformers.BertConfig  # noqa: B018
            except (ImportError, AttributeError):
                _leave(TEST_SKIPS["importerror"])
            return func(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorator


def requires_world_size(n: int) -> Callable[[F], F]:
    """Ask for `n` ranks, each with a GPU, for one test: `get_required_world_size` tells."""

    def decorator(func: F) -> F:
        func._required_world_size = n  # type: ignore[attr-defined]
        available = accelerator_count("cuda")
        return unittest.skipUnless(
            available >= n, f"requires {n} GPUs, of which there are {available}"
        )(func)

    return decorator


def get_required_world_size(obj: Any, default: int) -> int:
    """What `requires_world_size` asks for in the test that `obj` runs, else `default`."""
    name = getattr(obj, "_current_test_name", None)
    name = name() if callable(name) else name or getattr(obj, "_testMethodName", None)
    test = getattr(obj, name, None) if name else None
    return int(getattr(test, "_required_world_size", default))


def _leave(skip: TestSkip) -> NoReturn:
    sys.exit(skip.exit_code)
