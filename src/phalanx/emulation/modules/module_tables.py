"""The tables of modules: one for each rank, and one for threads outside ranks.

For a module that each rank has for itself, `sys.modules` holds a `RankModule`, which stands for
the module of the rank whose thread asks. Only C code and holders of proxies see it; Python code
looks through `module_view.py`. Used by all of `emulation/modules/`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from phalanx.core.strand import here
from phalanx.emulation.modules.isolation_rule import IsolationRule

KEY = "modules"
"""Where a rank's context keeps its `Owner`, in `saved`."""


class Owner:
    """The modules of one rank. Modules outside its rule belong to its parent: in a nested run
    the rank that made it, in the end the process."""

    def __init__(self, rule: IsolationRule | None = None, parent: Owner | None = None) -> None:
        self.rule = rule
        self.parent = parent
        self.modules: dict[str, Any] = {}

    def of(self, name: str) -> Owner:
        """The owner of the module of this name."""
        owner = self
        while owner.parent is not None and not (owner.rule and owner.rule.covers(name)):
            owner = owner.parent
        return owner

    def find(self, name: str) -> Any:
        found = self.modules.get(name)  # it has only what it covers
        return self.of(name).modules.get(name) if found is None else found

    def decide(self, top: str) -> bool:
        """Whether a new package belongs to this owner, or to some parent."""
        owner: Owner | None = self
        while owner is not None:
            if owner.rule is not None and owner.rule.decide(top):
                return True
            owner = owner.parent
        return False

    def adopt(self, top: str) -> bool:
        """The same for a module that the program makes itself."""
        owner: Owner | None = self
        while owner is not None:
            if owner.rule is not None and owner.rule.adopt(top):
                return True
            owner = owner.parent
        return False


outside = Owner()
"""Owns what the process had imported of isolated packages."""


def owner_here() -> Owner:
    strand = here.strand
    if strand is None:
        return outside
    found: Owner = strand.local.saved.get(KEY, outside)
    return found


class RankModule(ModuleType):
    """In `sys.modules` for a module that each rank has for itself: every thread, even one that
    does not hold the baton, finds the names of its own rank. Pickle looks here."""

    def __init__(self, name: str) -> None:
        ModuleType.__setattr__(self, "_phalanx_name", name)

    def __getattribute__(self, name: str) -> Any:
        return getattr(_own(self, name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_own(self, name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_own(self, name), name)

    def __dir__(self) -> list[str]:
        return dir(_own(self, "__dir__"))

    def __repr__(self) -> str:
        return repr(_own(self, "__repr__"))


def _own(proxy: RankModule, asked: str) -> Any:
    name = module_name(proxy)
    found = owner_here().find(name)
    if found is None and asked == "__spec__":
        # C code that imports finds the proxy, and then asks whether it is ready.
        import_module(name)
        found = owner_here().find(name)
    if found is None:
        raise AttributeError(f"module {name!r} is not imported here", name=asked, obj=proxy)
    return found


def module_name(proxy: RankModule) -> str:
    name: str = object.__getattribute__(proxy, "__dict__")["_phalanx_name"]
    return name


def real(module: Any) -> Any:
    """The module itself, for a thread that would otherwise hold the stand-in."""
    if type(module) is RankModule:
        return owner_here().find(module_name(module)) or module
    return module


shared: dict[str, Any] = sys.modules
"""The dictionary that the interpreter itself uses, always the same one."""


def real_class(thing: Any) -> Any:
    """The calling rank's own version of a class or function of any rank's module."""
    name = getattr(thing, "__module__", None)
    if not isinstance(name, str) or type(shared.get(name)) is not RankModule:
        return thing
    found = owner_here().find(name)
    for part in getattr(thing, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return thing if found is None else found
