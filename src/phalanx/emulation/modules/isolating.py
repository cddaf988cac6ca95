"""Give the ranks of a run modules of their own, and put everything back afterwards.

Used by the threads engine around each run that isolates packages. Other runs pay nothing: not
even `sys.modules` is replaced. A run inside a rank sees that rank's modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from types import CodeType, ModuleType
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.core.strand import here
from phalanx.emulation.modules import importing, monkeypatches
from phalanx.emulation.modules.isolation_rule import MAIN, MP_MAIN, IsolationRule
from phalanx.emulation.modules.module_tables import (
    KEY,
    Owner,
    RankModule,
    outside,
    owner_here,
    shared,
)
from phalanx.emulation.modules.module_view import SeenModules
from phalanx.emulation.modules.registrations import registration_patches
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import OWN_MODULES


class _Installed:
    """What is installed while any run isolates packages."""

    def __init__(self) -> None:
        self.depth = 0
        self.finder: importing.OwnFinder | None = None
        self.folders: set[str] = set()
        self.take_out: Callable[[], None] | None = None


_installed = _Installed()


def own_modules(contexts: Iterable[RankContext], rule: IsolationRule | None) -> None:
    """Prepare a new world: its ranks begin with no modules of their own. Without a rule, the
    ranks of a nested run have the modules of the rank that made it."""
    parent = owner_here()
    if rule is None and parent is outside:
        return
    for context in contexts:
        context.saved[KEY] = parent if rule is None else Owner(rule, parent)


def isolating(rule: IsolationRule | None) -> AbstractContextManager[None]:
    """A context for a run with this rule."""
    return _NOTHING if rule is None else _isolating(rule)


_NOTHING = nullcontext()


@contextmanager
def _isolating(rule: IsolationRule) -> Iterator[None]:
    _hold(rule)
    try:
        yield
    finally:
        _release()


def own_main(context: RankContext, main: ModuleType, code: CodeType | None = None) -> None:
    """Give the rank of a script its `__main__`."""
    owner: Owner = context.saved[KEY]
    owner.modules[MAIN] = owner.modules[MP_MAIN] = main
    file = getattr(main, "__file__", MAIN)
    monkeypatches.expect(file)
    if code is not None:
        monkeypatches.expect_code(file, code)


def _hold(rule: IsolationRule) -> None:
    _installed.depth += 1
    if _installed.depth == 1:
        _installed.folders = set(sys.path_importer_cache)
        _installed.take_out = put_in(
            OWN_MODULES,
            [
                *importing.import_patches(),
                (sys, "modules", SeenModules()),
                *registration_patches(),
            ],
        )
        _installed.finder = importing.OwnFinder()
        sys.meta_path.insert(0, _installed.finder)
    if any(type(shared.get(top)) not in (RankModule, type(None)) for top in rule.tops()):
        _put_aside(rule)
    for name in rule.named:
        if name not in shared:
            shared[name] = RankModule(name)


def _put_aside(rule: IsolationRule) -> None:
    """Set the process's own modules of these packages aside."""
    for name, module in list(shared.items()):
        if rule.covers(name) and type(module) is not RankModule:
            outside.modules[name] = module
            shared[name] = RankModule(name)


def _release() -> None:
    _installed.depth -= 1
    if _installed.depth == 0:
        _uninstall(outside)
        for folder in set(sys.path_importer_cache) - _installed.folders:
            del sys.path_importer_cache[folder]


def _uninstall(owner: Owner) -> None:
    """Take everything out, and leave plain modules: those of this owner."""
    assert _installed.take_out is not None
    monkeypatches.end()
    for name, module in list(shared.items()):
        if type(module) is RankModule:
            found = owner.find(name)
            if found is None:
                del shared[name]
            else:
                shared[name] = found
    if sys.meta_path is not None and _installed.finder in sys.meta_path:
        sys.meta_path.remove(_installed.finder)
    _installed.take_out()
    outside.modules.clear()
    _installed.finder = _installed.take_out = None


_forking: dict[int, Any] = {}
"""The strand that forks, by thread: several may fork at the same time."""


def _before_fork() -> None:
    _forking[get_ident()] = here.strand


def _after_fork() -> None:
    _forking.pop(get_ident(), None)


def _in_the_child() -> None:
    """In a forked child, which is a plain process with the modules of the rank that forked
    it."""
    strand = _forking.get(get_ident())
    _forking.clear()
    if _installed.depth:
        owner = outside if strand is None else strand.local.saved.get(KEY, outside)
        _installed.depth = 0
        _uninstall(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_the_child
    )
