"""Make functions, arguments and results travel between the program and its ranks.

Used by both ends of the processes engine. Functions and classes go by name where a rank can
find them: a serialized says in which files their modules are, because a test module or a script
often has a name that no import finds (`module_finder.py` loads them). Those without such a name
(lambdas, nested functions, what was typed into a session or notebook) go by value, which
cloudpickle does. Tensors are `buffers.py`'s. Must never run what it packs.
"""

from __future__ import annotations

import copyreg
import functools
import io
import linecache
import os
import pickle
import re
import sys
from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from phalanx.engines.serialization import module_finder
from phalanx.engines.serialization.buffers import Hold, IncomingMemory, Memory
from phalanx.errors import UsageError

WAY_OUT = (
    "define it at the top level of a module, or use engine='threads', or install what sends "
    "it as it is: pip install cloudpickle"
)


@dataclass(frozen=True)
class Serialized:
    """Something pickled, the files of the modules that the pickle names, the memory that its
    large tensors are in, and source text that is in no file (of a notebook's cells)."""

    data: bytes
    modules: dict[str, str | None] = field(default_factory=dict)
    main: dict[str, str] = field(default_factory=dict)
    memories: tuple[Memory, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)


class _Nameless(UsageError):
    """A function or class that no rank would find by its name."""


class _Packer(pickle.Pickler):
    """Notes the modules of the functions and classes it meets, and puts tensors into a hold."""

    def __init__(self, file: io.BytesIO, hold: Hold) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=hold.take_buffer)
        self.hold = hold
        self.modules: dict[str, str | None] = {}
        self.sources: dict[str, str] = {}

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (FunctionType, type)):
            if not module_finder.is_found_by_name(thing):
                return self.nameless(thing)
            self.note(thing.__module__)
            return NotImplemented
        return self.hold.reduce(thing)

    def note(self, module: str) -> None:
        module = module_finder.MAIN if module_finder.is_main(module) else module
        if module not in self.modules:
            self.modules[module] = module_finder.file_of(module)

    def nameless(self, thing: Any) -> Any:
        raise _Nameless(_why_nameless(thing))


@functools.cache
def _by_value() -> type[_Packer] | None:
    """A packer that sends functions and classes without a name by value."""
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    original = cloudpickle.Pickler
    # That of open files would send what is in them.
    reducers = {k: v for k, v in original.dispatch_table.items() if k is not io.TextIOWrapper}
    table = ChainMap(reducers, copyreg.dispatch_table)

    class ByValue(_Packer, original):  # type: ignore[misc, valid-type, unused-ignore]
        dispatch_table = table

        def __init__(self, file: io.BytesIO, hold: Hold) -> None:
            original.__init__(self, file, pickle.HIGHEST_PROTOCOL, hold.take_buffer)
            self.hold = hold
            self.modules = {}
            self.sources = {}

        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, ModuleType):
                self.note(thing.__name__)
                return NotImplemented
            if isinstance(thing, type) and thing.__module__ == "builtins":
                return original.reducer_override(self, thing)
            return super().reducer_override(thing)

        def nameless(self, thing: Any) -> Any:
            if isinstance(thing, FunctionType):
                self._note_source(thing.__code__.co_filename)
            module = sys.modules.get(thing.__module__)
            if module is None or thing.__module__ == "__main__":
                return original.reducer_override(self, thing)
            # Or it would trust the name that we do not trust.
            cloudpickle.register_pickle_by_value(module)
            try:
                return original.reducer_override(self, thing)
            finally:
                cloudpickle.unregister_pickle_by_value(module)

        def _note_source(self, file: str) -> None:
            """For reports: cells of a notebook have their lines in this process only."""
            if file in linecache.cache and not os.path.exists(file):
                self.sources[file] = "".join(linecache.getlines(file))

    return ByValue


def pack(thing: Any, *, inline: bool = False, sharing: bool = False) -> Serialized:
    """Pickle it; the error of pickle, or a `UsageError`, if that cannot be done."""
    try:
        return _packed(thing, _Packer, Hold(inline=inline, sharing=sharing))
    except Exception:
        packer = _by_value()
        if packer is None:
            raise
        return _packed(thing, packer, Hold(inline=inline, sharing=sharing))


def _packed(thing: Any, kind: type[_Packer], hold: Hold) -> Serialized:
    file = io.BytesIO()
    packer = kind(file, hold)
    packer.dump(thing)
    main = module_finder.main() if module_finder.MAIN in packer.modules else {}
    return Serialized(
        file.getvalue(), packer.modules, main, tuple(hold.memories), packer.sources
    )


def pickled(thing: Any) -> bytes:
    """The same as plain bytes, for `pickle.loads`: for what needs no modules loaded."""
    return pack(thing, inline=True).data


def pickled_error(error: BaseException) -> bytes | None:
    """The same for an error, or None. Python calls the class with `args` to make it anew; one
    that wants other arguments is made without calling it."""
    same_kind = None
    for thing in (error, _Remade(error)):
        with suppress(Exception):
            data = pickled(thing)
            found = pickle.loads(data)
            if type(found) is type(error):
                same_kind = same_kind or data
                if is_same_text(str(found), str(error)):
                    return data
    return same_kind


def is_same_text(one: str, other: str) -> bool:
    """Whether they are the same but for addresses of objects."""
    return _ADDRESS.sub("", one) == _ADDRESS.sub("", other)


_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")


class _Remade:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        state = {}
        for name, value in vars(self._error).items():
            with suppress(Exception):  # without what cannot be sent
                pickled(value)
                state[name] = value
        args = self._error.args
        inner = getattr(self._error, "exceptions", None)  # of a group, and a tuple then
        if isinstance(inner, tuple) and len(args) == 2:
            args = (args[0], [_Remade(each) for each in inner])
        return _remake, (type(self._error), args, state)


def _remake(kind: type[BaseException], args: tuple[Any, ...], state: Any) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


def pack_call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Serialized:
    """Serialize a call. The error names the argument that cannot travel."""
    try:
        return pack((fn, tuple(args), dict(kwargs)), sharing=True)
    except Exception as error:
        raise UsageError(_find_culprit(fn, args, kwargs) or _reason(error)) from None


def pack_value(value: Any) -> Serialized:
    """Serialize a result."""
    try:
        return pack(value)
    except Exception as error:
        raise UsageError(
            f"returned {_named(value)}, which cannot be sent to the caller's process: "
            f"{_reason(error)}; return numbers, strings, tensors or containers of these"
        ) from None


def unpack_call(serialized: Serialized) -> Any:
    """In a rank: what was packed; modules that are not there yet are loaded first."""
    _loading.append(serialized)
    try:
        module_finder.provide(serialized.modules, serialized.main)
        return unpack_value(serialized)
    finally:
        _loading.pop()


def unpack_value(serialized: Serialized) -> Any:
    """In the program: what a rank returned."""
    for file, text in serialized.sources.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    with IncomingMemory(serialized.memories) as buffers:
        return pickle.loads(serialized.data, buffers=buffers)


_loading: list[Serialized] = []


def check_not_loading() -> None:
    """Refuse to start ranks from a rank that is only loading the module it came from: its
    ranks would load it too, and so on."""
    if _loading:
        raise UsageError(
            "the module starts ranks as soon as it is imported, and each rank imports it to "
            "find its functions; put the call under: if __name__ == '__main__':"
        )


def _why_nameless(thing: Any) -> str:
    name = thing.__qualname__
    if name.endswith("<lambda>"):
        what = "a lambda has no name"
    elif "<locals>" in name:
        what = f"{name} is defined inside a function"
    elif thing.__module__ == "__main__":
        what = f"{name} was typed into an interactive session"
    else:
        what = f"{thing.__module__}.{name} is not what that name stands for now"
    return f"{what} and cannot be sent to another process; {WAY_OUT}"


def _find_culprit(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    called = getattr(fn, "__name__", type(fn).__name__)
    parts = [
        ("", fn),
        *((f"argument {place + 1} of {called}: ", each) for place, each in enumerate(args)),
        *((f"argument {key!r} of {called}: ", each) for key, each in kwargs.items()),
    ]
    for what, each in parts:
        try:
            pack(each)
        except UsageError as error:
            return f"{what}{error}"
        except Exception as error:
            return (
                f"{what}{_named(each)} cannot be sent to another process: {_reason(error)}; "
                "make it inside the function, or use engine='threads'"
            )
    return None


def _named(thing: Any) -> str:
    """The thing in a few words: objects with long texts by their class."""
    text = "\n"
    with suppress(Exception):  # that of the user's class may raise
        text = repr(thing)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(thing).__qualname__}"


def _reason(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
