"""`sys.modules` as a thread sees it: common modules, and those of its own rank.

It replaces `sys.modules` while ranks have modules of their own. All Python code looks here,
including the import system; C code has the plain dictionary, with stand-ins
(`module_tables.RankModule`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any

from phalanx.emulation.modules.isolation_rule import is_installed
from phalanx.emulation.modules.module_tables import RankModule, outside, owner_here, shared

on_adoption: list[Callable[[str], object]] = []
"""Called with the file of a module that the program has loaded by its path."""


class SeenModules(dict[str, Any]):
    """A `dict` by type only, because some programs check it; its own storage stays empty."""

    def __init__(self) -> None:
        super().__init__()
        self._left: set[str] = set()
        """Shared packages that were taken out: if they come back, they are shared again."""

    def __getitem__(self, name: str) -> Any:
        found = shared[name]
        if type(found) is RankModule:
            owner = owner_here()
            own = owner.modules.get(name)
            return owner.of(name).modules[name] if own is None else own
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = shared.get(name, default)
        if type(found) is RankModule:
            owner = owner_here()
            own = owner.modules.get(name)
            return owner.of(name).modules.get(name, default) if own is None else own
        return found

    def __contains__(self, name: object) -> bool:
        found = shared.get(name, self)  # type: ignore[call-overload]
        if type(found) is RankModule:
            return name in owner_here().of(name).modules  # type: ignore[arg-type]
        return found is not self

    def __setitem__(self, name: str, module: Any) -> None:
        if not is_apart(name) and not self._adopt(name, module, sys._getframe(1)):
            shared[name] = module
            return
        if type(shared.get(name)) is not RankModule:
            shared[name] = RankModule(name)
        if type(module) is not RankModule:
            owner_here().of(name).modules[name] = module

    def __delitem__(self, name: str) -> None:
        if type(shared[name]) is RankModule:
            del owner_here().of(name).modules[name]
        else:
            del shared[name]
            self._left.add(name.partition(".")[0])

    def _adopt(self, name: str, module: Any, setter: FrameType) -> bool:
        """Whether a module that the program puts here under a new name, without an `import`,
        becomes each rank's own: one loaded by its path, or made in code."""
        top, owner = name.partition(".")[0], owner_here()
        if owner is outside or top in shared or top in self._left:
            return False
        file = _file(module)
        is_programs = _is_programs_own(setter) if file is None else not is_installed(file)
        if not is_programs or not owner.adopt(top):
            return False
        shared[top] = RankModule(top)
        if file is not None:
            for tell in on_adoption:
                tell(file)
        return True

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in list(shared) if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    keys: Any = MutableMapping.keys
    values: Any = MutableMapping.values
    items: Any = MutableMapping.items
    popitem: Any = MutableMapping.popitem
    clear: Any = MutableMapping.clear
    update: Any = MutableMapping.update
    setdefault: Any = MutableMapping.setdefault
    __eq__: Any = MutableMapping.__eq__

    def pop(self, name: str, *default: Any) -> Any:
        if default and name not in self:
            return default[0]
        found = self[name]
        del self[name]
        return found

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    __hash__ = None


def is_apart(name: str) -> bool:
    """Whether a module of this name is kept per rank: its top package has a stand-in."""
    return type(shared.get(name.partition(".")[0])) is RankModule


def _file(module: Any) -> str | None:
    spec = getattr(module, "__spec__", None)
    if not isinstance(spec, ModuleSpec) or not spec.has_location or not spec.origin:
        return None
    return os.path.realpath(spec.origin)


def _is_programs_own(setter: FrameType | None) -> bool:
    """Whether code that is each rank's own does this, maybe by something of Python's, such as
    `mock.patch.dict`. What the import system itself puts there was decided before."""
    if setter is not None and setter.f_globals.get("__name__") == "importlib._bootstrap":
        return False
    while setter is not None:
        name = setter.f_globals.get("__name__")
        if isinstance(name, str):
            top = name.partition(".")[0]
            if top != "phalanx" and top not in sys.stdlib_module_names:
                return is_apart(name)
        setter = setter.f_back
    return False
