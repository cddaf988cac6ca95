"""Make functions, arguments and results travel between the program and its ranks.

Used by both ends of the processes engine. Functions and classes go by name, so a rank must
find their modules: a parcel says in which files they are, because a test module or a script
often has a name that no import finds. Must never run what it packs.
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from phalanx.errors import UsageError
from phalanx.running.processes.messages import Parcel

WAY_OUT = "define it at the top level of a module, or use engine='threads'"


class _Packer(pickle.Pickler):
    """Notes the modules of the functions and classes it meets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.modules: dict[str, str | None] = {}

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (FunctionType, type)):
            _check_name(thing)
            name = thing.__module__
            if name not in self.modules:
                self.modules[name] = _file_of(name)
        return NotImplemented


def pack(thing: Any) -> Parcel:
    """Pickle it; the error of pickle, or a `UsageError`, if that cannot be done."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(thing)
    modules = packer.modules
    return Parcel(file.getvalue(), modules, _main() if "__main__" in modules else {})


def pack_call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Parcel:
    """The parcel of a call. What cannot travel is named."""
    try:
        return pack((fn, tuple(args), dict(kwargs)))
    except Exception as error:
        raise UsageError(_find_culprit(fn, args, kwargs) or _reason(error)) from None


def pack_value(value: Any) -> Parcel:
    """The parcel of a result."""
    try:
        return pack(value)
    except Exception as error:
        raise UsageError(
            f"returned {_named(value)}, which cannot be sent to the caller's process: "
            f"{_reason(error)}; return numbers, strings, tensors or containers of these"
        ) from None


def unpack_call(parcel: Parcel) -> Any:
    """In a rank: what was packed; modules that are not there yet are loaded first."""
    _loading.append(parcel)
    try:
        for name, file in parcel.modules.items():
            if name == "__main__":
                _load_main(parcel.main)
            elif name not in sys.modules:
                _provide(name, file)
        return pickle.loads(parcel.data)
    finally:
        _loading.pop()


def unpack_value(parcel: Parcel) -> Any:
    """In the program: what a rank returned."""
    return pickle.loads(parcel.data)


_loading: list[Parcel] = []


def check_not_loading() -> None:
    """Refuse to start ranks from a rank that is only loading the module it came from: its
    ranks would load it too, and so on."""
    if _loading:
        raise UsageError(
            "the module starts ranks as soon as it is imported, and each rank imports it to "
            "find its functions; put the call under: if __name__ == '__main__':"
        )


def _check_name(thing: Any) -> None:
    name = thing.__qualname__
    if "<locals>" in name or name == "<lambda>":
        what = "a lambda" if name.endswith("<lambda>") else f"{name} is"
        inside = "has no name" if name.endswith("<lambda>") else "defined inside a function"
        raise UsageError(f"{what} {inside} and cannot be sent to another process; {WAY_OUT}")
    if thing.__module__ == "__main__" and not _main():
        raise UsageError(
            f"{name} was typed into an interactive session and cannot be sent to another "
            f"process; put it into a module and import it, or use engine='threads'"
        )


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
    text = repr(thing)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(thing).__qualname__}"


def _reason(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _file_of(name: str) -> str | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) else None


def _main() -> dict[str, str]:
    """How another process finds `__main__`: as multiprocessing's spawn finds it."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    file = getattr(main, "__file__", None)
    if file is None or not os.path.exists(file):  # typed in, or read from standard input
        return {}
    return {"init_main_from_path": os.path.abspath(file)}


def _load_main(main: dict[str, str]) -> None:
    if sys.modules["__main__"].__name__ == "__mp_main__":
        return  # loaded before
    multiprocessing.spawn.prepare(dict(main))


def _provide(name: str, file: str | None) -> None:
    """Import it by name if that finds the same file, else load the file under that name,
    with the packages the name says it is in: without them no import of it succeeds."""
    if file is None or _is_found(name, file):
        return
    package, _, _ = name.rpartition(".")
    folder = os.path.dirname(file)
    if os.path.basename(file) == "__init__.py":
        _load(name, file, folder)
        return
    _provide_package(package, folder)
    _load(name, file, None)


def _provide_package(name: str, folder: str) -> None:
    if not name or name in sys.modules:
        return
    outer, _, last = name.rpartition(".")
    _provide_package(outer, os.path.dirname(folder))
    is_there = last == os.path.basename(folder)
    first = os.path.join(folder, "__init__.py")
    if is_there and os.path.exists(first):
        _load(name, first, folder)
        return
    package = ModuleType(name)
    package.__path__ = [folder] if is_there else []
    sys.modules[name] = package


def _load(name: str, file: str, folder: str | None) -> None:
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=None if folder is None else [folder]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _is_found(name: str, file: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is not None and _same(spec.origin, file)


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
