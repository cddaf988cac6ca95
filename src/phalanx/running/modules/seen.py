"""`sys.modules` as a thread sees it: common modules, and those of its own rank.

In place of `sys.modules` while ranks have modules of their own. All Python code looks here, the
import system too; C code has the plain dictionary, with stand-ins (`owners.RankModule`).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from phalanx.running.modules.owners import RankModule, owner_here, shared


class SeenModules(dict[str, Any]):
    """A `dict` only by its type, because some programs ask; its own storage stays empty."""

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
        if not is_apart(name):
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
