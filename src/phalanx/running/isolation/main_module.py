"""A rank's own `__main__` and `sys.argv`. Used by what runs scripts."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.core.baton import here


def own_script_state(context: RankContext, argv: list[str], main: ModuleType) -> None:
    """Give a rank its own `sys.argv` and `__main__`, from now on."""
    context.saved["argv"], context.saved["main"] = argv, main
    sys.argv = argv


class RankMain(ModuleType):
    """`sys.modules["__main__"]` while a script runs: whichever thread asks, even one that does
    not hold the baton, finds the names of its own rank. Pickling looks classes up here."""

    def __init__(self, outside: ModuleType) -> None:
        ModuleType.__setattr__(self, "_outside", outside)

    def __getattribute__(self, name: str) -> Any:
        return getattr(_main_here(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_main_here(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_main_here(self), name)

    def __dir__(self) -> list[str]:
        return dir(_main_here(self))


def _main_here(proxy: RankMain) -> ModuleType:
    strand = here.strand
    own = None if strand is None else strand.local.saved.get("main")
    outside: ModuleType = object.__getattribute__(proxy, "__dict__")["_outside"]
    return outside if own is None else own
