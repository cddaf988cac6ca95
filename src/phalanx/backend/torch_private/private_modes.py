"""Private torch names behind the guard of buffers in flight (modes, versions, schemas), and
those of dynamo.

A part of `private.py`, under the same rule: the name, the reason, the versions. Checked with
torch 2.11 (CUDA) and 2.13 (CPU).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch._guards import CompileContext
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.core.strand import RUNNING, Strand, here
from phalanx.errors import PhalanxWarning

Patches = Iterable[tuple[Any, str, Any]]

# 2.11-2.13: the calling thread's stack of `TorchFunctionMode`s.
_count: Any = torch._C._len_torch_function_stack
_push: Any = torch._C._push_on_torch_function_stack
_pop: Any = torch._C._pop_torch_function_stack
_at: Any = torch._C._get_function_stack_at

# 2.11-2.13: what else a thread keeps: whether `__torch_function__` is asked at all, and the
# innermost `saved_tensors_hooks`, None without one; True leaves those out that are for tracing.
sees_torch_functions: Any = torch._C._is_torch_function_enabled
hooks_of_saved_tensors: Any = torch._C._autograd._top_saved_tensors_default_hooks


def push_function_mode(mode: Any) -> None:
    """Put a function mode below those of the program, so that theirs nest as they were
    written; but above `torch.device`, which insists on being at the bottom."""
    if not _count():
        _push(mode)
        return
    above = [_pop() for _ in range(_count())]
    if above and isinstance(above[-1], DeviceContext):
        _push(above.pop())
    _push(mode)
    while above:
        _push(above.pop())


def has_function_mode(mode: Any) -> bool:
    return any(_at(place) is mode for place in range(_count()))


def remove_function_mode(mode: Any) -> bool:
    """Take it out, wherever it is. Returns whether it was there; it is not while it is being
    called."""
    count = _count()
    if count == 1 and _at(0) is mode:
        _pop()
        return True
    if not has_function_mode(mode):
        return False
    above = []
    while (top := _pop()) is not mode:
        above.append(top)
    while above:
        _push(above.pop())
    return True


_push_dispatch_mode: Any = torch._C._push_on_torch_dispatch_stack
_pop_dispatch_mode: Any = torch._C._pop_torch_dispatch_stack
_DispatchMode: Any = TorchDispatchMode


class OneCallMode(_DispatchMode):  # type: ignore[misc]
    """2.11-2.13: a mode that sees the operators of one call. torch's own class imports dynamo
    on first use, which takes a second, and keeps flags for it that are the whole process's."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Any:
        _push_dispatch_mode(self)
        return self

    def __exit__(self, *error: object) -> None:
        _pop_dispatch_mode(None)


# 2.11-2.13: the count of in-place writes that a tensor shares with its views.
version_of: Callable[[torch.Tensor], int] = attrgetter("_version")


def has_dispatch_modes() -> bool:
    """2.11-2.13: whether a mode of the program's sees the operators that this thread calls."""
    return bool(torch._C._len_torch_dispatch_stack())


def schema_of(operator: Any) -> Any:
    """2.11-2.13: an operator's arguments and returns: which alias, which are written."""
    return operator._schema


listeners: list[Callable[[bool], None]] = []
"""Functions to call in a rank's thread when a compiled function begins (True) or ends
(False)."""


def is_compiling() -> bool:
    """2.11-2.13: whether the calling thread is inside dynamo's compiler."""
    return CompileContext.try_get() is not None


def prepare_eval_frame(module: Any) -> Patches:
    """Corrections to make in dynamo's module after its import."""
    return [*_tell_of_compiled_functions(module), *_compile_for_each_rank(module)]


def _tell_of_compiled_functions(module: Any) -> Patches:
    """2.11-2.13: dynamo guards on the stack of function modes and traces through them, so
    that none of ours may be there while it compiles or runs what it has compiled. While it
    compiles it turns itself off now and then, which is no end."""
    original = module.set_eval_frame
    names = ("set_eval_frame", "_maybe_set_eval_frame")
    shares = not hasattr(module, _REGIONS)

    def set_eval_frame(callback: Any) -> Any:
        if shares and callable(callback) and here.strand is not None:
            _warn_of_shared_code()
        if here.strand is not None and not is_compiling():
            for tell in listeners:
                tell(bool(callback))
        return original(callback)

    same = (name for name in names if getattr(module, name, None) is original)
    return [(module, name, set_eval_frame) for name in same]


def _compile_for_each_rank(module: Any) -> Patches:
    """2.13: what dynamo compiles hangs on the code object, with `get_rank()` as a constant.
    Regions, made for callers who want caches of their own, keep the ranks' apart. Ranks of
    later worlds of the same size find what is there."""
    original = getattr(module, _REGIONS, None)
    if original is None:
        return []

    def set_region(number: int) -> int:
        strand = here.strand
        if strand is None or number >= _OUR_REGIONS:
            return int(original(number))
        context = strand.local
        own = (number + 1) << 26 | context.session.size << 13 | context.rank
        return int(original(_OUR_REGIONS + own))

    return [(module, _REGIONS, set_region)]


_OUR_REGIONS = 1 << 48
_REGIONS = "set_eval_frame_isolate_recompiles_id"
has_regions = hasattr(torch._C._dynamo.eval_frame, _REGIONS)
"""2.13. Before, ranks whose functions share a code object share what is compiled of it."""


class CompiledNow:
    """2.13: what dynamo's C module keeps once per process of the compiled function that runs:
    the region, and with `fullgraph=True` how many frames were compiled. A rank that waits in
    the middle must find its own again, or its code goes into another rank's region."""

    names = (_REGIONS, "set_fullgraph_compiled_frame_count")
    at_rest = (-1, -1)

    def __init__(self) -> None:
        module = torch._C._dynamo.eval_frame
        found = [getattr(module, name, None) for name in self.names]
        self._setters: list[Any] = found if None not in found else []

    @property
    def values(self) -> tuple[int, ...]:
        """A setter answers with what was there before."""
        now = tuple(setter(-1) for setter in self._setters)
        self.values = now
        return now

    @values.setter
    def values(self, values: tuple[int, ...]) -> None:
        for setter, value in zip(self._setters, values, strict=False):
            setter(value)


compiled_now = CompiledNow()


def wait_for_compiler_in_turn(module: Any) -> Patches:
    """2.11-2.13: one thread compiles at a time. A rank that waits for another one's compiler
    steps out of the baton, and goes on when it has both: the lock and its own state."""
    return [(module, "compile_lock", _CompileLock(module.compile_lock))]


class _CompileLock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        strand = here.strand
        if strand is None or strand.helper or strand.state is not RUNNING or not blocking:
            return bool(self._lock.acquire(blocking, timeout))
        return bool(self._lock.acquire(blocking=False)) or self._wait(strand, timeout)

    def _wait(self, strand: Strand, timeout: float) -> bool:
        has_it = False

        def attempt(seconds: float) -> bool:
            nonlocal has_it
            has_it = bool(self._lock.acquire(True, seconds))
            return has_it

        limit = None if timeout < 0 else timeout
        try:
            return strand.baton.wait_outside(strand, attempt, limit)
        except BaseException:
            if has_it:
                self._lock.release()
            raise

    def release(self) -> None:
        self._lock.release()


@cache
def _warn_of_shared_code() -> None:
    """Before 2.13, once: results may be wrong without any error."""
    text = (
        f"torch {torch.__version__} keeps what torch.compile makes of a function once for all "
        "ranks of a process: where it depends on the rank, results are wrong. Use torch 2.13 "
        "or later, engine='processes', or TORCH_COMPILE_DISABLE=1"
    )
    warnings.warn(PhalanxWarning(text), stacklevel=3)


def default_device() -> torch.device | None:
    """2.11-2.13: the default device as it was set, or None. `torch.get_default_device` says
    which GPU "cuda" is for the caller, and opens the driver for that."""
    for place in reversed(range(_count())):
        mode: Any = _at(place)
        if isinstance(mode, DeviceContext):
            return mode.device
    return None
