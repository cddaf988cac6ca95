"""Sees what the program's own lines do to tensors in flight, while there are any.

`buffer_guard.py` turns this on in a thread that has made an asynchronous call and off when
nothing is in flight. A function mode sees every call of torch from Python and lets those pass
that touch nothing in flight: that is cheap. Only for the others a dispatch mode looks at what
the call does, by the schemas of its operators: which arguments it reads, writes, or only views.
What torch does in C++ (autograd, DDP's reducer) is not looked at.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from phalanx.backend.torch_private import private_modes
from phalanx.backend.torch_private.private import (
    BACKWARD_NAME,
    function_modes,
    is_in_backward,
    no_function_modes,
)
from phalanx.backend.torch_private.private_modes import schema_of
from phalanx.backend.work import tensor_memory

if TYPE_CHECKING:
    from phalanx.backend.work.buffer_guard import Book
    from phalanx.checks.in_flight_buffer import How


class _State:
    """What one thread has: its mode, and whether it is on the stack."""

    mode: _Watch | None = None
    shown = False
    compiled = False
    """Whether a compiled function is running: then the mode must not be there."""


class _Thread(threading.local):
    state: _State | None = None


_thread = _Thread()


def _state_here() -> _State:
    if _thread.state is None:
        _thread.state = _State()
    return _thread.state


def enter(book: Book) -> None:
    """Watch what the calling thread does, from now on."""
    state = _state_here()
    mode = state.mode
    if mode is None or mode.book is not book:
        leave_thread()
        mode = state.mode = _Watch(book)
    if state.compiled:
        return
    if is_in_backward():
        # Autograd puts the stack of modes back after each node, so this is for the rest of a
        # hook; `after_backward` sees to what comes then.
        if not private_modes.has_function_mode(mode):
            private_modes.push_function_mode(mode)
    elif not state.shown:
        private_modes.push_function_mode(mode)
        state.shown = True


def leave(book: Book) -> None:
    """Nothing is in flight. Another thread's mode stays until that thread comes by."""
    state = _state_here()
    if state.mode is None or state.mode.book is not book:
        return
    if is_in_backward():
        private_modes.remove_function_mode(state.mode)
    elif state.shown:
        state.shown = not private_modes.remove_function_mode(state.mode)


def after_backward() -> None:
    """What hooks have begun is in flight from now on, and what they have waited for is not."""
    state = _state_here()
    mode = state.mode
    if mode is None or state.compiled or is_in_backward():
        return
    if mode.book.lows and not state.shown:
        private_modes.push_function_mode(mode)
        state.shown = True
    elif state.shown and not mode.book.lows:
        state.shown = not private_modes.remove_function_mode(mode)


def backward_patches() -> list[tuple[Any, str, Any]]:
    """Hooks of backward may begin operations, which are in flight when it has ended."""
    run = getattr(torch.autograd, BACKWARD_NAME)

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        finally:
            after_backward()

    return [(torch.autograd, BACKWARD_NAME, run_backward)]


def leave_thread() -> None:
    """The thread goes on to other things: another rank's, or another run's."""
    state = _thread.state
    if state is not None and state.mode is not None:
        private_modes.remove_function_mode(state.mode)
        state.mode, state.shown = None, False


def _tell_compiled(begins: bool) -> None:
    state = _state_here()
    state.compiled = begins
    mode = state.mode
    if mode is None:
        return
    if begins and state.shown:
        state.shown = not private_modes.remove_function_mode(mode)
    elif not begins and not state.shown and mode.book.lows:
        private_modes.push_function_mode(mode)
        state.shown = True


private_modes.listeners.append(_tell_compiled)

_RAW_READS = frozenset(
    {
        "__deepcopy__",
        "__format__",
        "__reduce_ex__",
        "__repr__",
        "tolist",
    }
)
"""Methods that read memory without an operator, or with modes turned off. `numpy` and its like
give another view, which may be looked at after the wait."""
_OPERATIONS = "torch.distributed.distributed_c10d"
"""Where torch's collectives are, which go by this way too; the group judges them."""
_HARMLESS = frozenset(
    {
        "__array__",
        "__dlpack__",
        "__get__",
        "__hash__",
        "__len__",
        "backward",
        "data_ptr",
        "detach",
        "dim",
        "element_size",
        "is_complex",
        "is_contiguous",
        "is_floating_point",
        "is_inference",
        "numel",
        "numpy",
        "register_hook",
        "requires_grad_",
        "size",
        "storage_offset",
        "stride",
        "untyped_storage",
        "view",
        "view_as_real",
    }
)
"""Calls that are known to read and write nothing, as most that a backend makes of its
arguments; `__get__` is that of properties. What runs inside of backward is C++'s."""


class _Watch(TorchFunctionMode):
    """Lets pass what touches nothing in flight."""

    def __init__(self, book: Book) -> None:
        super().__init__()
        self.book = book

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        book = self.book
        if getattr(func, "__module__", "") == _OPERATIONS:
            return func(*args, **kwargs)
        if not book.lows or not _touches(book, args, kwargs):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _HARMLESS:
            return func(*args, **kwargs)
        if name in _RAW_READS and isinstance(args[0], Tensor):
            book.judge_touch(args[0], "read", name)
        elif name == "__set__" and func == _SET_DATA:
            book.judge_touch(args[0], "replaced", "data = ...")
        with _Look(book, name):
            return func(*args, **kwargs)


_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


def _touches(book: Book, args: Any, kwargs: Any) -> bool:
    if function_modes():  # `torch.device` lies below ours
        with no_function_modes():
            return _reaches(book, args) or bool(kwargs and _reaches(book, kwargs.values()))
    return _reaches(book, args) or bool(kwargs and _reaches(book, kwargs.values()))


def _reaches(book: Book, given: Any) -> bool:
    """Whether a tensor among these lies where something is in flight."""
    for item in given:
        kind = type(item)
        if kind is Tensor or kind is Parameter:
            low, high = tensor_memory.extent(item)
            if low == high:
                book.saw_empty = True
            elif book.is_near(low, high):
                return True
        elif (kind is list or kind is tuple) and _reaches(book, item):
            return True
    return False


_LOOKS_ONLY = frozenset(
    {
        "aten::empty_like",
        "aten::zeros_like",
        "aten::ones_like",
        "aten::full_like",
        "aten::rand_like",
        "aten::randn_like",
        "aten::randint_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::new_zeros",
        "aten::new_ones",
        "aten::new_full",
        "aten::is_same_size",
        "aten::is_set_to",
        "aten::record_stream",
        "aten::is_pinned",
        "aten::lift_fresh",
    }
)
"""Operators that take a tensor for its shape and kind only."""
_REPLACES = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})


class _Look(private_modes.OneCallMode):
    """Looks at each operator of one call."""

    def __init__(self, book: Book, name: str) -> None:
        super().__init__()
        self.book = book
        self.name = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = schema_of(func)
        if schema.name not in _LOOKS_ONLY:
            self._look(schema, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, schema: Any, args: Any, kwargs: Any) -> None:
        replaced: How | None = "replaced" if schema.name in _REPLACES else None
        for place, argument in enumerate(schema.arguments):
            if place < len(args):
                given = args[place]
            elif argument.name in kwargs:
                given = kwargs[argument.name]
            else:
                continue
            alias = argument.alias_info
            writes = alias is not None and alias.is_write
            if alias is not None and not writes:
                continue  # the result is a view of it
            how: How = "read" if not writes else replaced or "written"
            for tensor in tensor_memory.plain_tensors((given,)):
                self.book.judge_touch(tensor, how, self.name)
