"""Which ranks did the same: 62 lanes that look alike are one.

`fold_ranks` is for pictures and tables of many ranks. Two ranks behave alike if they made the
same calls from the same lines with tensors of the same shapes, and came equally far. Needs no
torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable

from phalanx.report.timeline.calls_table import NEVER, CallsTable, RankCalls

MOST_FOLDS = 16
"""More than these, and ranks are compared by less: a reader wants to see a few."""

_COMPARED = (("op", "site", "tensors", "reduce"), ("op", "site"), ("op",))
"""Columns, the finest comparison first."""


def fold_ranks(table: CallsTable, apart: Iterable[int] = ()) -> list[list[int]]:
    """The ranks in folds; each fold, and the list of them, begins with the lowest rank.

    Ranks in `apart` (those that a verdict blames) are in no fold with one that is not.
    """
    blamed = set(apart)
    firsts = _common_first(table)
    folds: list[list[int]] = []
    for columns in _COMPARED:
        found: dict[Hashable, list[int]] = {}
        for calls in table.ranks:
            last = calls.forgotten + len(calls)
            skipped = firsts[last] - calls.forgotten
            key = (_digest(calls, columns, skipped), calls.rank in blamed)
            found.setdefault(key, []).append(calls.rank)
        folds = list(found.values())
        if len(folds) <= MOST_FOLDS:
            break
    return folds


def _common_first(table: CallsTable) -> dict[int, int]:
    """Rings forget the oldest calls of one rank earlier than those of another: ranks that made
    equally many calls are compared from the first call on that all of them still have."""
    firsts: dict[int, int] = {}
    for calls in table.ranks:
        last = calls.forgotten + len(calls)
        firsts[last] = max(calls.forgotten, firsts.get(last, 0))
    return firsts


def _digest(calls: RankCalls, columns: tuple[str, ...], skipped: int) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in columns:
        digest.update(memoryview(calls.columns[name])[skipped:])
    open_calls = [
        place
        for place, met in enumerate(calls.met)
        if met == NEVER and place >= skipped and calls.done[place] == NEVER
    ]
    last = calls.forgotten + len(calls)
    digest.update(repr((last, [place - len(calls) for place in open_calls])).encode())
    return digest.digest()
