"""Attributes in which torch keeps, once per process, what belongs to a rank.

They are swapped with the baton. What a rank starts with is what was there when the module was
imported, so a finder waits for the imports: a rank may import and change in one go. It also
sets right at once what an import inside a rank would get wrong. Modules that no program imports
cost nothing. Used by `switcher.py` and `run_patches.py`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

import torch

from phalanx.backend.session import RankContext, context_here
from phalanx.backend.torch_private import private, private_modes
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import IMPORTED, THREADS

KEPT = "torch"
"""The key under which a rank keeps its values of the attributes."""

WATCHED = {*private.PER_PROCESS, *private.AFTER_IMPORT}

on_import: dict[str, Callable[[ModuleType], object]] = {}
"""Functions to call after an import, by the name of the module."""

places: list[tuple[Any, str]] = []
"""Owner and name of the attributes to swap; empty in most programs."""

_originals: list[Any] = []
_undo: list[Callable[[], None]] = []


class AttributeFinder(MetaPathFinder):
    """In `sys.meta_path` while a world is open: notes the attributes of modules that are
    imported."""

    def install(self, stack: ExitStack) -> None:
        """`stack` gets what undoes it."""
        stack.callback(self._uninstall)
        for module in WATCHED:
            if module in sys.modules:
                note(sys.modules[module])
        stack.callback(_watch_hooks())
        sys.meta_path.insert(0, self)

    def _uninstall(self) -> None:
        if sys.meta_path is not None and self in sys.meta_path:  # None: Python is ending
            sys.meta_path.remove(self)
        while _undo:
            _undo.pop()()
        places.clear()
        _originals.clear()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in WATCHED and fullname not in on_import:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenNote(spec.loader)
        return spec


class _ThenNote(Loader):
    """Calls the module's own loader, then notes the module's attributes."""

    def __init__(self, original: Loader) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._original
        self._original.exec_module(module)
        if module.__name__ in on_import:
            on_import[module.__name__](module)
        if module.__name__ in WATCHED:
            note(module)


def note(module: ModuleType) -> None:
    """Note the present values. They are copied, because torch changes them in place."""
    set_right = private.AFTER_IMPORT.get(module.__name__)
    if set_right is not None:
        _undo.append(put_in(IMPORTED, set_right(module)))
    for owner, name in private.per_process_attributes(module.__name__):
        value = getattr(owner, name)
        # a module is in use at this moment; before, there was none
        add(owner, name, None if isinstance(value, torch.nn.Module) else copy(value))


def add(owner: Any, name: str, original: Any) -> None:
    """The original comes first: another rank that runs meanwhile needs one for every place."""
    _originals.append(original)
    places.append((owner, name))


def _hook_places() -> Iterator[tuple[Any, str]]:
    for module, names in private.GLOBAL_HOOKS.items():
        for name in names:
            yield sys.modules[module], name


class _Hooks(OrderedDict[Any, Any]):
    """One of torch's dicts of hooks, usually empty. When a rank registers the first hook, the
    dicts become each rank's own. So programs without such hooks pay nothing at hand-overs."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not _are_apart() and context_here() is not None:
            for owner, name in _hook_places():
                now = getattr(owner, name)
                add(owner, name, _hooks(now) if isinstance(now, dict) else now)
        super().__setitem__(key, value)

    heir: dict[Any, Any] | None = None
    """The dict that replaced this one when the last world closed."""

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        if self.heir is not None:
            self.heir.pop(key, None)


def _hooks(those: dict[Any, Any]) -> _Hooks:
    made = _Hooks()
    for key, value in those.items():
        OrderedDict.__setitem__(made, key, value)
    return made


def _are_apart() -> bool:
    return next(_hook_places()) in places


def _watch_hooks() -> Callable[[], None]:
    """What undoes it leaves torch's own dicts there, with what the program has registered
    meanwhile outside of ranks."""
    plain = [(owner, name, getattr(owner, name)) for owner, name in _hook_places()]
    dicts = [each for each in plain if isinstance(each[2], dict)]
    take_out = put_in(THREADS, [(owner, name, _Hooks(value)) for owner, name, value in dicts])

    def undo() -> None:
        for owner, name, value in dicts:
            now = getattr(owner, name)
            if now is not value:
                value.clear()
                value.update(now)
                if now:
                    now.heir = value
                    vars(value)["former"] = now  # handles refer to it weakly
        take_out()

    return undo


def _keep_compiled_apart(begins: bool) -> None:
    """A rank calls a compiled function: from the first such call on, torch's state for it is
    swapped with the baton."""
    place = (private_modes.compiled_now, "values")
    if begins and place not in places:
        add(*place, private_modes.compiled_now.at_rest)


private_modes.listeners.append(_keep_compiled_apart)


def save(context: RankContext) -> None:
    """Keep the rank's values before it hands the baton over."""
    context.saved[KEPT] = [getattr(owner, name) for owner, name in places]


def load(context: RankContext) -> None:
    """Set the rank's values when it gets the baton; at first copies of the originals."""
    own = context.saved.get(KEPT, [])
    if len(own) < len(_originals):
        own += map(_copied, _originals[len(own) :])
    for (owner, name), value in zip(places, own, strict=False):
        if getattr(owner, name) is not value:
            setattr(owner, name, value)


def _copied(value: Any) -> Any:
    """A faster `copy` for common types: every rank of every run calls it."""
    kind = type(value)
    return value.copy() if kind in _CONTAINERS else value if kind in _PLAIN else copy(value)


_CONTAINERS = frozenset({dict, list, set, OrderedDict, defaultdict})
_PLAIN = frozenset({bool, int, str, float, type(None), FunctionType})


def current() -> list[Any]:
    """The values when a run begins: the process's own, or, around a nested run, a rank's."""
    return [getattr(owner, name) for owner, name in places]


def restore(before: list[Any]) -> None:
    """Put back the values from before the run; for modules imported since then, the
    originals."""
    values = [*before, *map(copy, _originals[len(before) :])]
    for (owner, name), value in zip(places, values, strict=False):
        setattr(owner, name, value)
