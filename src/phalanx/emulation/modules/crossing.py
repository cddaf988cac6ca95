"""Convert objects between a caller and ranks that import packages for themselves.

A class of an isolated package exists once per rank and once for the caller. Objects of such
classes are pickled and become objects of the other side's class, as between processes; tensors
in them are passed without a copy. Everything else is passed as it is, and so is what cannot be
pickled. Used by `World` for `isolate=`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from torch import Tensor

from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.errors import RankFailedError


class _Packed:
    def __init__(self, thing: Any, data: bytes, tensors: list[Tensor]) -> None:
        self._thing = thing
        self._data = data
        self._tensors = tensors

    def open(self) -> Any:
        """Open it with the classes of the calling rank, or of the caller."""
        try:
            return _Unpickler(io.BytesIO(self._data), self._tensors).load()
        except Exception:  # by whatever its classes do
            return self._thing


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, rule: IsolationRule) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._rule = rule
        self.tensors: list[Tensor] = []
        self.is_needed = False
        """Whether it contains anything of an isolated package."""

    def persistent_id(self, thing: Any) -> int | None:
        if not isinstance(thing, Tensor):
            return None
        self.tensors.append(thing)
        return len(self.tensors) - 1

    def reducer_override(self, thing: Any) -> Any:
        module = getattr(thing, "__module__", None)
        self.is_needed |= isinstance(module, str) and self._rule.covers(module)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        return self._tensors[pid]


def _packed(thing: Any, rule: IsolationRule) -> _Packed | None:
    file = io.BytesIO()
    pickler = _Pickler(file, rule)
    try:
        pickler.dump(thing)
    except Exception:  # by whatever its classes do
        return None
    return _Packed(thing, file.getvalue(), pickler.tensors) if pickler.is_needed else None


class IsolatedCall:
    """One call of a function on ranks that have packages of their own."""

    def __init__(
        self, rule: IsolationRule, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        self._rule = rule
        self._fn = fn
        self._given = args, kwargs
        self._sent = _packed(self._given, rule)
        self._errors: dict[int, _Packed] = {}

    def call(self) -> Any:
        """Call the function with the rank's classes. Called in a rank."""
        __tracebackhide__ = True
        fn = _own(self._fn, self._rule)
        args, kwargs = self._given if self._sent is None else self._sent.open()
        try:
            value = fn(*args, **kwargs)
        except Exception as error:
            packed = _packed(error, self._rule)
            if packed is not None:
                self._errors[id(error)] = packed
            raise
        return _packed(value, self._rule) or value

    @contextmanager
    def errors_opened(self) -> Iterator[None]:
        """A context around the run, in which errors of ranks get the caller's classes."""
        try:
            yield
        except RankFailedError as error:
            first, cause = error.failures, error.__cause__
            error.failures = {rank: self._opened(each) for rank, each in first.items()}
            for rank, failure in first.items():
                if failure is cause:
                    error.__cause__ = error.failures[rank]
            raise
        finally:
            self._errors.clear()

    def _opened(self, error: BaseException) -> BaseException:
        packed = self._errors.get(id(error))
        if packed is None:
            return error
        opened = packed.open()
        if not isinstance(opened, BaseException):
            return error
        opened.__traceback__ = error.__traceback__
        opened.__cause__, opened.__context__ = error.__cause__, error.__context__
        opened.__suppress_context__ = error.__suppress_context__
        return opened


def opened(values: list[Any]) -> list[Any]:
    """The results of ranks, with the caller's classes."""
    return [value.open() if isinstance(value, _Packed) else value for value in values]


def _own(fn: Callable[..., Any], rule: IsolationRule) -> Callable[..., Any]:
    """The rank's own version of a function of an isolated package."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not rule.covers(module):
        return fn
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else fn
