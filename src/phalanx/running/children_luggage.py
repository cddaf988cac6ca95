"""What a child that becomes a rank gets from its parent, as a process would get it.

Used by `children.py`. `Luggage` is packed in the parent when the process is started and opened
in the rank's thread. By *spawn* and *forkserver* the process object travels by pickle, with
multiprocessing's own rules, and the script is executed anew as `__mp_main__`. By *fork* a child
has a copy of everything: the names of `__main__` are copied, its functions and classes so that
they use the copies. What cannot be copied (open files, locks, lambdas' cells) is shared.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import io
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.heap
import multiprocessing.synchronize
import os
import pickle
import random
import sys
from collections import ChainMap
from multiprocessing.reduction import ForkingPickler
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

_SHARED = (
    multiprocessing.synchronize.SemLock,
    multiprocessing.heap.BufferWrapper,
    multiprocessing.heap.Arena,
)
"""What a forked child has in common with its parent."""


class _Descriptor:
    """A file descriptor of the child's own."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)

    def detach(self) -> int:
        return self._fd


class Passage:
    """Stands for the child while things are pickled for it: multiprocessing asks for this."""

    DupFd = _Descriptor

    def duplicate_for_child(self, fd: int) -> int:
        return os.dup(fd)


_set_spawning: Any = multiprocessing.context.set_spawning_popen


class Luggage:
    """One child's process object and surroundings, as they were when it was started."""

    def __init__(self, process: Any, number: int, *, forked: bool, main: ModuleType) -> None:
        self.forked = forked
        self.environ = dict(os.environ)
        self.argv = list(sys.argv)
        self._random = torch.get_rng_state() if forked else _new_generator(number)
        self._python_random = random.getstate() if forked else None
        self._main = _ForkedMain(main) if forked else None
        self._kept: list[Any] = []
        self._data = _copied(process, self._kept) if forked else _spawned(process)

    def make_main(self) -> ModuleType:
        """The child's own `__main__`; that of a spawned one is still to be executed."""
        return ModuleType("__mp_main__") if self._main is None else self._main.make()

    def open(self) -> Any:
        """In the rank, whose `__main__` is there already: its process object."""
        if self._main is not None:
            self._main.fill()
        torch.set_rng_state(self._random)
        if self._python_random is not None:
            random.setstate(self._python_random)
        return _Loader(io.BytesIO(self._data), self._kept).load()


def _new_generator(number: int) -> torch.Tensor:
    """A new process draws its first seed by chance. Ours differ too, but a run repeats."""
    generator = torch.Generator()
    generator.manual_seed(generator.initial_seed() + number)
    return generator.get_state()


def _spawned(process: Any) -> bytes:
    _set_spawning(Passage())
    try:
        return bytes(ForkingPickler.dumps(process))
    finally:
        _set_spawning(None)


def _copied(value: Any, kept: list[Any]) -> bytes:
    """Pickled for a forked child; if that cannot be, part by part; else the value itself."""
    try:
        return _dump(value, kept)
    except Exception:
        if isinstance(value, multiprocessing.process.BaseProcess) and value._popen is None:  # type: ignore[attr-defined]
            return _dump(_by_parts(value, kept), kept)
        kept.append(value)
        return _dump(_Kept(len(kept) - 1), kept)


def _dump(value: Any, kept: list[Any]) -> bytes:
    _set_spawning(Passage())
    known = len(kept)
    try:
        buffer = io.BytesIO()
        _Copier(buffer, kept).dump(value)
        return buffer.getvalue()
    except BaseException:
        del kept[known:]
        raise
    finally:
        _set_spawning(None)


class _Kept:
    def __init__(self, place: int) -> None:
        self.place = place


class _Parts:
    """A process object whose attributes travel one by one."""

    def __init__(self, kind: type, state: dict[str, bytes]) -> None:
        self.kind, self.state = kind, state


def _by_parts(process: Any, kept: list[Any]) -> _Parts:
    state = dict(vars(process))
    for name in ("_args", "_kwargs"):
        state.pop(name, None)
    parts = {name: _copied(value, kept) for name, value in state.items()}
    parts["_args"] = _dump([_copied(each, kept) for each in process._args], kept)
    named = {name: _copied(value, kept) for name, value in process._kwargs.items()}
    parts["_kwargs"] = _dump(named, kept)
    return _Parts(type(process), parts)


class _Copier(pickle.Pickler):
    """Pickles as a fork copies: tensors by value, what is in shared memory as it is."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        own: dict[Any, Any] = {
            kind: reduce
            for kind, reduce in ForkingPickler._extra_reducers.items()  # type: ignore[attr-defined]
            if not getattr(reduce, "__module__", "").startswith("torch.")
        }
        self.dispatch_table = ChainMap(own, dict[Any, Any](copyreg.dispatch_table))
        self._kept = kept

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, _Kept):
            return obj.place
        if not self._is_shared(obj):
            return None
        self._kept.append(obj)
        return len(self._kept) - 1

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            return importlib.import_module, (obj.__name__,)
        return NotImplemented

    @staticmethod
    def _is_shared(obj: Any) -> bool:
        if isinstance(obj, torch.Tensor):
            return _is_shared_tensor(obj)
        if isinstance(obj, FunctionType):
            return not _has_name(obj)
        return isinstance(obj, _SHARED)


def _is_shared_tensor(tensor: Any) -> bool:
    return bool(tensor.device.type != "cpu" or tensor.is_shared() or tensor.grad_fn is not None)


def _has_name(function: FunctionType) -> bool:
    """Whether pickle finds it by its name."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


class _Loader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, pid: Any) -> Any:
        return self._kept[pid]

    def load(self) -> Any:
        found = super().load()
        return self._assemble(found) if isinstance(found, _Parts) else found

    def _assemble(self, parts: _Parts) -> Any:
        state = {name: self._open(data) for name, data in parts.state.items()}
        state["_args"] = tuple(self._open(data) for data in state["_args"])
        state["_kwargs"] = {name: self._open(data) for name, data in state["_kwargs"].items()}
        kind: Any = parts.kind
        process = kind.__new__(kind)
        process.__dict__.update(state)
        return process

    def _open(self, data: bytes) -> Any:
        return _Loader(io.BytesIO(data), self._kept).load()


class _ForkedMain:
    """The parent's `__main__` when it forked. Code is copied by `make`, data by `fill`, which
    needs the copied classes to be found under their names."""

    def __init__(self, main: ModuleType) -> None:
        names = vars(main)
        self._names = names
        self._order = list(names)
        self._kept: list[Any] = []
        self._code = {k: v for k, v in names.items() if _is_code_of(v, names)}
        rest = {k: v for k, v in names.items() if k not in self._code}
        self._as_is = {k: rest.pop(k) for k in list(rest) if k.startswith("__")}
        self._data = {name: _copied(value, self._kept) for name, value in rest.items()}

    def make(self) -> ModuleType:
        self._main = ModuleType("__main__")
        names = vars(self._main)
        names.update(dict.fromkeys(self._order))
        names.update(self._as_is)
        copies: dict[int, Any] = {}
        for name, value in self._code.items():
            names[name] = _copy_code(value, names, self._names, copies)
        return self._main

    def fill(self) -> None:
        names = vars(self._main)
        for name, data in self._data.items():
            names[name] = _Loader(io.BytesIO(data), self._kept).load()


def _is_code_of(value: Any, names: dict[str, Any]) -> bool:
    if isinstance(value, FunctionType):
        return value.__globals__ is names
    return isinstance(value, type) and value.__module__ == names.get("__name__")


def _copy_code(
    value: Any, names: dict[str, Any], before: dict[str, Any], copies: dict[int, Any]
) -> Any:
    """A function or class that uses these names instead of those of before."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, FunctionType):
        found: Any = _copy_function(value, names, before, None)
    else:
        found = _copy_class(value, names, before, copies)
    copies[id(value)] = found
    return found


def _copy_function(
    function: FunctionType,
    names: dict[str, Any],
    before: dict[str, Any],
    own_class: CellType | None,
) -> FunctionType:
    if function.__globals__ is not before:
        return function
    free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = tuple(
        own_class if own_class is not None and name == "__class__" else cell
        for name, cell in free
    )
    copied = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, closure or None
    )
    functools.update_wrapper(copied, function)
    if not hasattr(function, "__wrapped__"):
        del copied.__wrapped__  # type: ignore[attr-defined]
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _copy_class(
    kind: type, names: dict[str, Any], before: dict[str, Any], copies: dict[int, Any]
) -> type:
    """The class itself where a second one cannot be made (enumerations, slots)."""
    own_class = CellType()

    def copy(part: Any) -> Any:
        if isinstance(part, FunctionType):
            return _copy_function(part, names, before, own_class)
        if isinstance(part, (staticmethod, classmethod)):
            return type(part)(copy(part.__func__))
        if isinstance(part, property):
            return property(copy(part.fget), copy(part.fset), copy(part.fdel), part.__doc__)
        return part

    if "__slots__" in vars(kind):
        return kind
    parts = {
        name: copy(part)
        for name, part in vars(kind).items()
        if name not in ("__dict__", "__weakref__")
    }
    bases = tuple(
        _copy_code(base, names, before, copies) if _is_code_of(base, before) else base
        for base in kind.__bases__
    )
    try:
        found: type = type(kind)(kind.__name__, bases, parts)
    except Exception:
        return kind
    own_class.cell_contents = found
    return found
