"""What an import does while ranks have modules of their own.

Two names of Python are replaced. `__import__`, because the interpreter's own returns what is
in `sys.modules`, and a rank must get its own module. The locks of modules under import, because
a module that communicates while it is imported would block the other ranks. And a finder comes
first, so that ranks share compiled code. Used by `isolating.py`.
"""

from __future__ import annotations

import builtins
import importlib
import os
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from phalanx.backend.torch_private import private_modes
from phalanx.callsite import is_own_file
from phalanx.emulation.modules import monkeypatches
from phalanx.emulation.modules.isolation_rule import find_spec
from phalanx.emulation.modules.module_tables import (
    RankModule,
    outside,
    owner_here,
    real,
    shared,
)
from phalanx.emulation.modules.module_view import is_apart

bootstrap: Any = importlib._bootstrap

plain_import: Any = builtins.__import__
_plain_lock: Any = bootstrap._get_module_lock


def rank_import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    """`__import__`: Python's own in C for what is shared, Python's own in Python for the rest,
    which goes by `sys.modules` as the calling thread sees it."""
    if level == 0:
        top = name.partition(".")[0]
    else:
        package = globals.get("__package__") or globals.get("__name__") or ""
        top = package.partition(".")[0]
    if type(top) is str and not settle(top):
        return plain_import(name, globals, locals, fromlist, level)
    ready = _ready(name, top, fromlist) if level == 0 else None
    if ready is not None:
        return ready
    try:
        module = bootstrap.__import__(name, globals, locals, fromlist or (), level)
    except BaseException as error:
        raise error.with_traceback(_trimmed(error.__traceback__))  # noqa: B904
    if fromlist:
        return _with_unfinished(module, fromlist)
    return real(module)


def _ready(name: str, top: str, fromlist: Any) -> Any:
    """The usual case, an import of a loaded module: returns what the statement binds."""
    owner = owner_here()
    module = owner.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    if not fromlist:
        return module if name == top else owner.modules.get(top)
    return module if all(hasattr(module, each) for each in fromlist) else None


def settle(top: str) -> bool:
    """Whether this package is kept per rank. Decided when the first rank imports it."""
    found = shared.get(top)
    if found is not None:
        return type(found) is RankModule
    owner = owner_here()
    if owner is outside or top in shared or not owner.decide(top):
        return False
    shared[top] = RankModule(top)
    return True


def _with_unfinished(module: Any, fromlist: Any) -> Any:
    """`from package import part` inside a circle of imports: the part is in `sys.modules` but
    not yet an attribute of the package. The interpreter then looks there by itself, and would
    find the stand-in."""
    module = real(module)
    name = getattr(module, "__name__", None)
    if not isinstance(name, str):
        return module
    unfinished = {}
    for each in fromlist:
        if isinstance(each, str) and type(shared.get(f"{name}.{each}")) is RankModule:
            part = owner_here().find(f"{name}.{each}")
            if part is not None and not hasattr(module, each):
                unfinished[each] = part
    return _Unfinished(module, unfinished) if unfinished else module


class _Unfinished(ModuleType):
    """A package for the moment of one `from` statement."""

    def __init__(self, package: Any, parts: dict[str, Any]) -> None:
        super().__init__(package.__name__)
        self.__dict__.update(parts)
        self.__dict__["_phalanx_package"] = package

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_phalanx_package"], name)


def _trimmed(trace: TracebackType | None) -> TracebackType | None:
    """Remove the frames of the import system from the traceback, as Python does, and ours."""
    kept = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<frozen importlib") and not is_own_file(file):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for each in reversed(kept):
        following = TracebackType(following, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return following


def rank_lock(name: str) -> Any:
    """The lock of a module that is being imported: one for each rank that has its own."""
    owner = owner_here()
    if owner is outside or not settle(name.partition(".")[0]):
        return _plain_lock(name)
    return _plain_lock(f"{name} (imported by {id(owner.of(name)):x})")


class OwnFinder(MetaPathFinder):
    """The first finder in `sys.meta_path`: asks the others, and lets ranks share code and
    extension modules."""

    isolates = True

    def __init__(self) -> None:
        self._extensions: dict[str, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_apart(fullname):
            return None
        spec: ModuleSpec | None = find_spec(fullname, path, target, but=self)
        if spec is None:
            return None
        loader = spec.loader
        if type(loader) is SourceFileLoader:
            spec.loader = SharedCodeLoader(loader.name, loader.path)
        elif isinstance(loader, ExtensionFileLoader):
            spec.loader = OnceLoader(loader, self._extensions)
        return spec


MOST_CODES = 4096
_codes: dict[str, tuple[Any, CodeType]] = {}
"""Compiled code by file, with its time and size; kept between runs, because tests import the
same files again."""


class SharedCodeLoader(SourceFileLoader):
    """Compiles, or reads from the cache, once for all ranks; again if the file has changed."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        state = os.stat(path)
        version = (state.st_mtime_ns, state.st_size)
        known = _codes.get(path)
        monkeypatches.expect(path)
        if known is not None and known[0] == version:
            monkeypatches.expect_code(path, known[1])
            return code_of_one_rank(known[1])
        code = super().get_code(fullname)
        if code is not None:
            monkeypatches.expect_code(path, code)
        if code is not None:
            if len(_codes) >= MOST_CODES:
                _codes.clear()
            _codes[path] = version, code
        return code


def code_of_one_rank(code: CodeType) -> CodeType:
    """The code object that a rank executes, of code that all ranks have. Dynamo keeps compiled
    code on a code object, with the globals of the rank that came first; unless torch separates
    the ranks there, each rank has copies."""
    return code if private_modes.has_regions else _copied(code)


def _copied(code: CodeType) -> CodeType:
    inner = tuple(_copied(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_consts=inner)


class OnceLoader(Loader):
    """Loads an extension module, which exists once per process: ranks share it."""

    def __init__(self, original: Any, made: dict[str, Any]) -> None:
        self._original = original
        self._made = made
        self._is_first = original.path not in made

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if self._original.path not in self._made:
            self._made[self._original.path] = self._original.create_module(spec)
        found: ModuleType | None = self._made[self._original.path]
        return found

    def exec_module(self, module: ModuleType) -> None:
        if self._is_first:
            self._original.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def import_patches() -> list[tuple[Any, str, Any]]:
    """The patches. Also keeps the originals, which are called for shared modules."""
    global plain_import, _plain_lock
    plain_import, _plain_lock = builtins.__import__, bootstrap._get_module_lock
    return [
        (builtins, "__import__", rank_import),
        (bootstrap, "_get_module_lock", rank_lock),
    ]
