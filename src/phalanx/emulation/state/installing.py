"""Everything that is replaced during runs so that ranks have their own: one list.

There are many and runs are short, so the replacements are made once and kept, and put into a
module all at once. Used by `patches.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from phalanx.emulation.random import cuda_randomness, helper_thread_rng
from phalanx.emulation.state import descriptors, exits, folder, logs, rank_settings, recursion
from phalanx.emulation.state.environ import RankEnviron, RankEnvironBytes, environ_patches

Patch = tuple[Any, str, Any]
Names = dict[str, Any]


class _Bundle:
    """Patches of modules, with what was there when they were made."""

    def __init__(self, patches: list[Patch]) -> None:
        self._modules: dict[str, tuple[Names, Names, Names]] = {}
        self.others: list[Patch] = []
        for owner, name, replacement in patches:
            if isinstance(owner, ModuleType):
                empty: tuple[Names, Names, Names] = (vars(owner), {}, {})
                _, new, old = self._modules.setdefault(owner.__name__, empty)
                new[name], old[name] = replacement, vars(owner)[name]
            else:
                self.others.append((owner, name, replacement))

    def fits(self) -> bool:
        """Whether nobody has replaced any of it since."""
        return all(
            here[name] is original
            for here, _, old in self._modules.values()
            for name, original in old.items()
        )

    def put_in(self) -> None:
        for here, new, _ in self._modules.values():
            here.update(new)

    def put_back(self) -> None:
        for here, _, old in self._modules.values():
            here.update(old)


_made: list[_Bundle] = []


def install_isolation() -> Callable[[], None]:
    """Replace everything; the function that puts it back."""
    if not _made or not _made[0].fits():
        _made[:] = [_Bundle(_patches())]
    bundle = _made[0]
    undo: list[Callable[[], Any]] = []
    environs: list[Patch] = [(os.environ, "__class__", RankEnviron)]
    if hasattr(os, "environb"):
        environs.append((os.environb, "__class__", RankEnvironBytes))
    passing = cuda_randomness.cuda_patches()
    bundle.put_in()
    for owner, name, replacement in [*environs, *bundle.others, *passing]:
        undo.append(_putting_back(owner, name))
        setattr(owner, name, replacement)

    def put_back() -> None:
        while undo:
            undo.pop()()
        bundle.put_back()
        rank_settings.forget()
        descriptors.forget()
        helper_thread_rng.uninstall()

    return put_back


def _putting_back(owner: Any, name: str) -> Callable[[], None]:
    """What hid an attribute of the instances is taken away again."""
    if name == "__class__":
        return partial(setattr, owner, name, owner.__class__)
    if name in vars(owner):
        return partial(setattr, owner, name, vars(owner)[name])
    return partial(delattr, owner, name)


def _patches() -> list[Patch]:
    return [
        *environ_patches(),
        *rank_settings.setting_patches(),
        *rank_settings.thread_patches(),
        *helper_thread_rng.seed_patches(),
        *cuda_randomness.absent_patches(),
        *descriptors.descriptor_patches(),
        *logs.log_patches(),
        *exits.exit_patches(),
        *recursion.recursion_patches(),
        *folder.mask_patches(),
    ]
