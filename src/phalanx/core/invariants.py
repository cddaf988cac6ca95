"""`always`: what must hold whenever it is looked at, in every order and with every fault.

In a run that is explored a violation is a failure of the run from that moment on: an `except`
of the program cannot undo it. Elsewhere, also without any run of ours, it is an AssertionError.
Must never import torch: programs import it wherever they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx import callsite
from phalanx.core.strand import Strand, here
from phalanx.model import CallBlock, Finding, Group, Kind, Op, Site

KIND: Kind = "invariant"


def always(condition: object, message: str = "", *values: object) -> None:
    """Say what must hold at this point, in whatever order ranks came here.

    `condition` is judged as `assert` would. If it is a function without arguments, it is called
    now, at each further call of the rank to a group or, in a run that is explored, to a store,
    and when the rank ends; the same function with the same message counts once. `values` are
    shown after the message.

    In a run that is explored a violation fails the run, with an `InvariantError`, even if the
    program catches that. Elsewhere it raises `AssertionError` with the same words.

    >>> always(1 + 1 == 2, "numbers are what they were")
    >>> always(len([1, 2, 3]) < 3, "the queue is too long", 3)
    Traceback (most recent call last):
    AssertionError: the invariant does not hold: the queue is too long: 3
    """
    site = callsite.resolve(callsite.mark())
    strand = here.strand
    check = _Check(condition, message, values, site)
    if callable(condition) and strand is not None:
        name = f"{getattr(condition, '__qualname__', '')} {message}"
        strand.local.invariants.setdefault(name, check)
    check(strand)


class _Check:
    """An invariant, and where the program says it."""

    def __init__(
        self, condition: object, message: str, values: tuple[object, ...], site: Site | None
    ) -> None:
        self._condition = condition
        self._message = message
        self._values = values
        self._site = site

    def __call__(self, strand: Strand | None) -> None:
        """Raise if it does not hold."""
        holds = self._condition() if callable(self._condition) else self._condition
        if holds:
            return
        words = f"the invariant does not hold{self._about()}"
        if strand is None or strand.baton.choices is None:
            raise AssertionError(words)
        error = strand.local.session.report(self._finding(strand.rank, words))
        if strand.local.tell_failure is not None:
            strand.local.tell_failure(error)
        raise error

    def _about(self) -> str:
        parts = [self._message] if self._message else []
        if self._values:
            parts.append(", ".join(map(repr, self._values)))
        elif not parts and self._site is not None:
            parts.append(self._site.source)
        return f": {': '.join(parts)}" if parts else ""

    def _finding(self, rank: int, words: str) -> Finding:
        op = Op(rank, "always", Group("world", ()), site=self._site)
        notes: tuple[str, ...] = ()
        found = callsite.resolve(callsite.mark())
        if callable(self._condition) and found is not None and found != self._site:
            notes = (f"seen when the rank came to {found} in {found.function}",)
        return Finding(
            KIND, "error", (rank,), f"rank {rank}: {words}", (CallBlock((rank,), op, notes),)
        )


def check_invariants(strand: Strand) -> None:
    """Look whether all functions that this rank has given still hold. They may make calls of
    their own, at which nothing is looked at."""
    local: Any = strand.local
    known: dict[str, Callable[[Strand], None]] = local.invariants
    local.invariants = {}
    try:
        for check in list(known.values()):
            check(strand)
    finally:
        local.invariants = {**known, **local.invariants}
