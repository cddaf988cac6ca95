"""Find modules by name in another process, where no import may find them.

Used by `serialization.py`: in the sender to say where a function's module is and whether its
name leads to it, in the receiver to load what is missing. Must never load what an import finds.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import multiprocessing.spawn
import os
import sys
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

MAIN = "__main__"


def is_main(name: str) -> bool:
    """Whether it is the name of the program, which has another one in ranks."""
    return sys.modules.get(name) is sys.modules[MAIN]


def is_found_by_name(thing: Any) -> bool:
    """Whether a rank that has the module gets this function or class from its name."""
    if thing.__module__ == "builtins":
        return True  # some are not there by name; pickle knows them
    owner: Any = sys.modules.get(thing.__module__)
    if owner is None:
        return not _is_local(thing) and _can_be_imported(thing.__module__)
    if thing.__module__ == "__main__":
        if not _is_in_file(thing, main().get("init_main_from_path")):
            return False
    elif getattr(owner, "__spec__", None) is None and file_of(thing.__module__) is None:
        return False  # made by hand
    for part in thing.__qualname__.split("."):
        owner = getattr(owner, part, None)
    return owner is thing


def _can_be_imported(name: str | None) -> bool:
    """`exec` makes functions in modules that are none."""
    try:
        return name is not None and importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False


def _is_local(thing: Any) -> bool:
    return "<" in thing.__qualname__


def _is_in_file(thing: Any, path: str | None) -> bool:
    """Whether it comes from the file of `__main__`, and was not typed in afterwards."""
    if path is None:
        return bool(main())
    inside = [thing, *vars(thing).values()] if isinstance(thing, type) else [thing]
    files = [each.__code__.co_filename for each in inside if isinstance(each, FunctionType)]
    return all(os.path.isabs(file) or os.path.exists(file) for file in files)


def file_of(name: str) -> str | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) else None


def main() -> dict[str, str]:
    """How another process finds `__main__`: as multiprocessing's spawn finds it. Empty if
    it was typed in, or read from standard input."""
    module = sys.modules["__main__"]
    name = getattr(getattr(module, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    file = getattr(module, "__file__", None)
    if file is None or not os.path.exists(file):
        return {}
    return {"init_main_from_path": os.path.abspath(file)}


def provide(modules: Mapping[str, str | None], main: dict[str, str]) -> None:
    """In a rank: load those that are not there and that no import would find."""
    for name, file in modules.items():
        if name == "__main__":
            _load_main(main)
        elif name not in sys.modules:
            _provide(name, file)


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
