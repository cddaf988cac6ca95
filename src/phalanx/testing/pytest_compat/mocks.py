"""`unittest.mock.patch` in ranks that are threads, which enter and leave patches in any order.

`mock` keeps what it found in the patch object, and a patch that decorates a test is one object
for all ranks. A rank that leaves before another puts the original back under the other's patch,
which then puts the first rank's mock back for good. So here each rank has its own. The private
names of `unittest.mock` are used only here: `_patch`, `_patch_dict`, `get_original` and what
they keep. Used by `on_threads.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from phalanx.core.strand import here
from phalanx.emulation.patch_installer import Patch, replaced
from phalanx.emulation.patch_table import PYTEST

FOUND_BY_PATCH = ("target", "temp_original", "is_local", "_exit_stack", "is_started")
HANDED_DOWN = ("temp_original", "is_local", "_original")


@dataclass
class _Entered:
    """One rank inside of one patch: what the patch object held then."""

    patch: Any
    rank: int
    place: tuple[Any, ...]
    found: dict[str, Any]


def _rank() -> int:
    """The rank of the calling thread. Threads of no rank use patches as usual."""
    assert here.strand is not None
    return here.strand.rank


class _Ledger:
    """The ranks inside of each patch, in the order in which they entered."""

    def __init__(self) -> None:
        self._entered: list[_Entered] = []

    def enter(self, patch: Any, place: tuple[Any, ...], names: tuple[str, ...]) -> None:
        found = {name: vars(patch)[name] for name in names if name in vars(patch)}
        self._entered.append(_Entered(patch, _rank(), place, found))

    def leave(self, patch: Any) -> _Entered | None:
        """Give the patch back what it held when this rank entered it."""
        rank = _rank()
        for entry in reversed(self._entered):
            if entry.patch is patch and entry.rank == rank:
                vars(patch).update(entry.found)
                return entry
        return None

    def is_covered(self, entry: _Entered) -> bool:
        """Remove the entry. If another patch of the same object lies above, that one gets the
        value from before, and nothing is put back now."""
        index = self._entered.index(entry)
        del self._entered[index]
        above = [each for each in self._entered[index:] if each.place == entry.place]
        if not above:
            return False
        above[0].found.update((n, v) for n, v in entry.found.items() if n in HANDED_DOWN)
        return True

    def original(self, place: tuple[Any, ...]) -> _Entered | None:
        """The entry with the original value, for a rank that is not inside itself: it must not
        see the mocks of others."""
        inside = [each for each in self._entered if each.place == place]
        rank = _rank()
        return inside[0] if inside and all(each.rank != rank for each in inside) else None

    def rest(self) -> Iterator[_Entered]:
        """Entries that ranks have left that could not be stopped, the last one first."""
        while self._entered:
            yield self._entered.pop()


_unchecked: Any = mock
_patch, _patch_dict = _unchecked._patch, _unchecked._patch_dict
_ledger = _Ledger()


@contextmanager
def patches_by_rank() -> Iterator[None]:
    """While tests run on ranks: give each rank its own view of patches of `mock`."""
    patches = [
        *_by_rank(_patch, ("__enter__", "__exit__", "get_original"), _of_attributes),
        *_by_rank(_patch_dict, ("_patch_dict", "_unpatch_dict"), _of_dicts),
    ]
    with replaced(PYTEST, patches):
        yield


def _by_rank(kind: Any, names: tuple[str, ...], make: Callable[..., Any]) -> Iterator[Patch]:
    replacements = make(_ledger, *(vars(kind)[name] for name in names))
    return ((kind, *pair) for pair in zip(names, replacements, strict=True))


def undo_rest_of_mocks() -> None:
    """After a run: leave patches for ranks that could not be stopped."""
    for entry in _ledger.rest():
        vars(entry.patch).update(entry.found)
        if "_original" in entry.found:
            _patch_dict._unpatch_dict(entry.patch)
        else:
            _patch.__exit__(entry.patch, None, None, None)


def _of_attributes(
    ledger: _Ledger,
    enter: Callable[..., Any],
    leave: Callable[..., Any],
    get_original: Callable[..., Any],
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    def enter_patch(self: Any) -> Any:
        vars(self).pop("_there", None)  # of one who failed to enter
        result = enter(self)
        if here.strand is not None:
            there = vars(self).pop("_there", None)  # what is to be put back
            if there is not None:
                self.temp_original, self.is_local = there
            ledger.enter(self, _place_of(self), FOUND_BY_PATCH)
        return result

    def get_original_of_rank(self: Any) -> Any:
        """What a mock is to be like (`autospec`, `wraps`)."""
        there = get_original(self)
        first = None if here.strand is None else ledger.original(_place_of(self))
        if first is None:
            return there
        self._there = there
        return first.found["temp_original"], first.found["is_local"]

    def leave_patch(self: Any, *error: Any) -> Any:
        entry = ledger.leave(self) if here.strand is not None else None
        if entry is None or not ledger.is_covered(entry):
            return leave(self, *error)
        return entry.found["_exit_stack"].__exit__(*error)

    return enter_patch, leave_patch, get_original_of_rank


def _place_of(patch: Any) -> tuple[Any, ...]:
    return ("attribute", id(patch.target), patch.attribute)


def _of_dicts(
    ledger: _Ledger, enter: Callable[..., Any], leave: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def enter_patch(self: Any) -> None:
        enter(self)
        strand = here.strand
        if strand is None:
            return
        owner = strand.rank if self.in_dict is os.environ else None  # each rank has its own
        ledger.enter(self, ("dict", id(self.in_dict), owner), ("_original",))

    def leave_patch(self: Any) -> None:
        entry = ledger.leave(self) if here.strand is not None else None
        if entry is None or not ledger.is_covered(entry):
            leave(self)

    return enter_patch, leave_patch
