"""Replacements in modules that may be imported later, by a rank, or never.

Importing them beforehand would cost a second; so a finder waits for their names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Patch = tuple[Any, str, Any]
"""Owner, name, replacement."""


class LatePatches(MetaPathFinder):
    """For each module, by name, what to replace in it once it is there."""

    def __init__(self, patches: Mapping[str, Callable[[ModuleType], list[Patch]]]) -> None:
        self._patches = patches
        self._undo: list[Patch] = []

    def install(self) -> None:
        sys.meta_path.insert(0, self)
        for name in self._patches:
            if name in sys.modules:
                self.apply(sys.modules[name])

    def uninstall(self) -> None:
        sys.meta_path.remove(self)
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)

    def apply(self, module: ModuleType) -> None:
        for owner, name, replacement in self._patches[module.__name__](module):
            self._undo.append((owner, name, vars(owner)[name]))
            setattr(owner, name, replacement)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._patches:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenPatch(spec.loader, self)
        return spec


class _ThenPatch(Loader):
    """The module's own loader, and the patches after it."""

    def __init__(self, original: Loader, patches: LatePatches) -> None:
        self._original = original
        self._patches = patches

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._original
        self._original.exec_module(module)
        self._patches.apply(module)
