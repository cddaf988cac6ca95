"""What a child that becomes a rank receives from its parent, as a process would receive it.

`SpawnPayload` is packed in the parent when the process is started, and opened in the rank's
thread. With *spawn* and *forkserver* the process object is pickled by multiprocessing's own
rules, and the script is executed again as `__mp_main__`. With *fork* a child has a copy of
everything: the names of `__main__` are copied, and its functions and classes use the copies.
What cannot be copied (open files, locks, cells of lambdas) is shared. Used by
`spawned_ranks.py`.
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
from enum import Enum
from multiprocessing.reduction import ForkingPickler
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from phalanx.emulation.modules.module_view import is_apart

_SHARED = (
    multiprocessing.synchronize.SemLock,
    multiprocessing.heap.BufferWrapper,
    multiprocessing.heap.Arena,
)
"""Objects that a forked child shares with its parent."""


class _Descriptor:
    """A file descriptor of the child's own."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)

    def detach(self) -> int:
        return self._fd


class Passage:
    """Stands for the child while objects are pickled for it: multiprocessing requires one."""

    DupFd = _Descriptor

    def duplicate_for_child(self, fd: int) -> int:
        return os.dup(fd)


_set_spawning: Any = multiprocessing.context.set_spawning_popen


class SpawnPayload:
    """One child's process object and its environment, as they were when it was started."""

    def __init__(
        self, process: Any, number: int, *, forked: bool, modules: dict[str, ModuleType]
    ) -> None:
        self.forked = forked
        self.environ = dict(os.environ)
        self.argv = list(sys.argv)
        self._random = torch.get_rng_state() if forked else _new_generator(number)
        self._python_random = random.getstate() if forked else None
        self._modules = _ForkedModules(modules) if forked else None
        self._kept: list[Any] = []
        self._data = _copied(process, self._kept) if forked else _spawned(process)

    def make_modules(self) -> dict[str, ModuleType]:
        """The child's own `__main__`, and the program's modules that it gets from its parent;
        the `__main__` of a spawned child is still to be executed."""
        if self._modules is None:
            return {"__main__": ModuleType("__mp_main__")}
        return self._modules.make()

    def open(self) -> Any:
        """The process object, opened in the rank, whose `__main__` exists already."""
        if self._modules is not None:
            self._modules.fill()
        torch.set_rng_state(self._random)
        if self._python_random is not None:
            random.setstate(self._python_random)
        return _Loader(io.BytesIO(self._data), self._kept).load()


def _new_generator(number: int) -> torch.Tensor:
    """The first state of a rank's generator. A new process draws its first seed at random; ours
    differ too, but a run repeats."""
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
    """The value pickled for a forked child; if that fails, part by part; else the value
    itself."""
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
    """A process object whose attributes are pickled one by one."""

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
    """Pickles as a fork copies: tensors by value, shared memory without a copy."""

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
        if isinstance(obj, Enum) and obj.name in type(obj).__members__:
            return getattr, (type(obj), obj.name)  # by value: a copy need not be equal
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
    """Whether pickle can find it by its name."""
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


class _ForkedModules:
    """The program's modules when it forked. Code is copied by `make`, data by `fill`, which
    needs the copied classes to be found under their names."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self._names = {name: dict(vars(module)) for name, module in modules.items()}
        self._spaces = {id(vars(module)): name for name, module in modules.items()}
        self._kept: list[Any] = []
        data = {
            (module, name): value
            for module, names in self._names.items()
            for name, value in names.items()
            if not _is_dunder(name) and not self._is_code(value)
        }
        try:  # together, so that what is one object stays one
            self._together: bytes | None = _dump(data, self._kept)
        except Exception:
            self._together = None
            self._parts = {key: _copied(value, self._kept) for key, value in data.items()}

    def make(self) -> dict[str, ModuleType]:
        self._made = {name: ModuleType(name) for name in self._names}
        copier = _CodeCopier(self._spaces, self._made)
        for module, names in self._names.items():
            new = vars(self._made[module])
            new.update(dict.fromkeys(names))
            for name, value in names.items():
                if self._is_code(value):
                    new[name] = copier.copy(value)
                elif _is_dunder(name):
                    new[name] = value
        return self._made

    def fill(self) -> None:
        if self._together is not None:
            found = _Loader(io.BytesIO(self._together), self._kept).load()
        else:
            found = {
                key: _Loader(io.BytesIO(data), self._kept).load()
                for key, data in self._parts.items()
            }
        for (module, name), value in found.items():
            setattr(self._made[module], name, value)

    def _is_code(self, value: Any) -> bool:
        if isinstance(value, FunctionType):
            return id(value.__globals__) in self._spaces
        return isinstance(value, type) and value.__module__ in self._names


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _ranks_own(kind: type) -> Any:
    """This rank's own version of a class of an isolated library; other classes as they are."""
    if not is_apart(kind.__module__):
        return kind
    found: Any = importlib.import_module(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return kind if found is None else found


class _CodeCopier:
    """Copies functions and classes of these modules, so that they use the copied ones."""

    def __init__(self, spaces: dict[int, str], made: dict[str, ModuleType]) -> None:
        self._spaces = spaces
        self._made = made
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        if id(value) not in self._copies:
            is_function = isinstance(value, FunctionType)
            found = self._function(value) if is_function else self._class(value)
            self._copies[id(value)] = found
        return self._copies[id(value)]

    def _function(self, function: FunctionType, own_class: CellType | None = None) -> Any:
        module = self._spaces.get(id(function.__globals__))
        if module is None:
            return function
        free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = tuple(
            own_class if own_class is not None and name == "__class__" else cell
            for name, cell in free
        )
        code, names = function.__code__, vars(self._made[module])
        copied: Any = FunctionType(
            code, names, function.__name__, function.__defaults__, closure or None
        )
        functools.update_wrapper(copied, function)
        if not hasattr(function, "__wrapped__"):
            del copied.__wrapped__
        copied.__kwdefaults__ = function.__kwdefaults__
        return copied

    def _class(self, kind: type) -> type:
        """The class itself where a second one cannot be made (enumerations, slots)."""
        if "__slots__" in vars(kind):
            return kind
        own_class = CellType()
        skipped = ("__dict__", "__weakref__")
        parts = {
            name: self._part(part, own_class)
            for name, part in vars(kind).items()
            if name not in skipped
        }
        bases = tuple(
            self.copy(base) if base.__module__ in self._made else _ranks_own(base)
            for base in kind.__bases__
        )
        try:
            found: type = _ranks_own(type(kind))(kind.__name__, bases, parts)
        except Exception:
            return kind
        own_class.cell_contents = found
        return found

    def _part(self, part: Any, own_class: CellType) -> Any:
        if isinstance(part, FunctionType):
            return self._function(part, own_class)
        if isinstance(part, (staticmethod, classmethod)):
            return type(part)(self._part(part.__func__, own_class))
        if isinstance(part, property):
            get, put, remove = (
                self._part(each, own_class) for each in (part.fget, part.fset, part.fdel)
            )
            return property(get, put, remove, part.__doc__)
        return part
