"""Helpers for tests, under torch's names: stores, devices, folders, debug levels, captured
output.

They work in ranks and outside. Each puts back what it changed.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from functools import wraps
from io import StringIO
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.testing.torch_compat.skips import accelerator_count

F = TypeVar("F", bound=Callable[..., Any])

DEBUG = "TORCH_DISTRIBUTED_DEBUG"
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def create_tcp_store(
    addr: str = "localhost",
    world_size: int = 1,
    is_master: bool = True,
    timeout: timedelta = timedelta(minutes=5),
    wait_for_workers: bool = True,
    jit_class: bool = False,
    use_libuv: bool = True,
) -> Any:
    """A TCP store on a port that the system picks, so that none is ever taken already."""
    if jit_class:
        milliseconds = int(timeout / timedelta(milliseconds=1))
        return torch.classes.dist_c10d.TCPStore(addr, 0, world_size, is_master, milliseconds)
    return dist.TCPStore(  # type: ignore[attr-defined]
        addr,
        0,
        world_size,
        is_master,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        use_libuv=use_libuv,
    )


def create_device(interface: str | None = None, lazy_init: bool = False) -> Any:
    """A device for `ProcessGroupGloo.Options`: of a network interface, else loopback's."""
    gloo: Any = dist.ProcessGroupGloo
    if interface is None or sys.platform == "win32":
        return gloo.create_device(hostname="127.0.0.1", lazy_init=lazy_init)
    return gloo.create_device(interface=interface, lazy_init=lazy_init)


@contextmanager
def captured_output() -> Iterator[tuple[StringIO, StringIO]]:
    """What is printed inside goes to the two buffers: standard output and error."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        yield out, err


def init_multigpu_helper(world_size: int, backend: str) -> dict[int, list[int]]:
    """For each rank the GPUs that are its own: one each, or, if there are more ranks than GPUs,
    what an even division leaves, which is an empty list."""
    count = accelerator_count()
    each = 1 if world_size <= count else count // world_size
    return {
        rank: list(range(count))[rank * each : (rank + 1) * each] for rank in range(world_size)
    }


_temp_dirs: list[tempfile.TemporaryDirectory[str]] = []


def initialize_temp_directories(init_method: str | None = None) -> None:
    """Make a folder with `barrier`, `test_dir` and `init_dir` in it and name it in the
    variable TEMP_DIR; INIT_METHOD becomes `init_method`, or a file in `init_dir`."""
    cleanup_temp_dir()
    folder = tempfile.TemporaryDirectory()
    _temp_dirs.append(folder)
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder.name, name))
    shared = os.path.join(folder.name, "init_dir", "shared_init_file")
    os.environ["TEMP_DIR"] = folder.name
    os.environ["INIT_METHOD"] = init_method if init_method is not None else f"file://{shared}"


def cleanup_temp_dir() -> None:
    """Remove the folder that `initialize_temp_directories` made, if it did."""
    while _temp_dirs:
        _temp_dirs.pop().cleanup()


_files: dict[str, int] = {}


def new_file() -> str:
    """An empty file where ranks can meet. If it is not removed, because of Ctrl-C, it is
    deleted when the process that made it ends."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        _files[file.name] = os.getpid()
    return file.name


def remove_file(name: str) -> None:
    with suppress(OSError):
        os.remove(name)
    _files.pop(name, None)


@atexit.register
def _remove_files() -> None:
    for name, owner in list(_files.items()):
        if owner == os.getpid():
            remove_file(name)


def with_dist_debug_levels(levels: Sequence[str]) -> Callable[[F], F]:
    """Run the test once for each level of TORCH_DISTRIBUTED_DEBUG, with a barrier after
    each."""

    def decorator(func: F) -> F:
        @wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            value, before = None, dist.get_debug_level()  # type: ignore[attr-defined]
            try:
                with _environment_kept(DEBUG):
                    for level in levels:
                        os.environ[DEBUG] = level
                        dist.set_debug_level_from_env()  # type: ignore[attr-defined]
                        value = func(*args, **kwargs)
                        dist.barrier()
            finally:
                dist.set_debug_level(before)  # type: ignore[attr-defined]
            return value

        return wrapper  # type: ignore[return-value]

    return decorator


def with_nccl_blocking_wait(func: F) -> F:
    """Run the test with TORCH_NCCL_BLOCKING_WAIT=1 and without asynchronous error handling."""

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _environment_kept(BLOCKING_WAIT, ASYNC_ERRORS):
            os.environ[BLOCKING_WAIT] = "1"
            os.environ.pop(ASYNC_ERRORS, None)
            return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


@contextmanager
def _environment_kept(*names: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def verify_ddp_error_logged(model_DDP: Any, err_substr: str) -> None:  # noqa: N803
    """Check that DDP's logging data tells of an error with this text (a C++ stack after it
    does not count)."""
    logged = private.ddp_logging_data(model_DDP)
    missing = {"iteration", "has_error", "error"} - set(logged)
    if missing:
        raise AssertionError(f"DDP's logging data lacks {', '.join(sorted(missing))}")
    wanted = err_substr.partition("\nException raised from ")[0]
    if wanted not in logged["error"]:
        raise AssertionError(f"DDP logged {logged['error']!r}, which does not hold {wanted!r}")
