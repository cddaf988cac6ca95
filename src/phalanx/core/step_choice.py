"""Who goes on in a run that is explored: the baton's half of `choices.py`.

Who is between two steps goes first; then the choices pick one of those that can make their
step. Where nobody can, promises are given up (`on_idle`), then time passes, and at last those
go on that look again at what has not changed. The baton holds its mutex in all of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.core.choices import Choices, Step
from phalanx.core.strand import OUTSIDE, Strand, cpu_time, is_asleep
from phalanx.system import monotonic

QUIET = 0.03
"""Seconds for which a thread has to be asleep to be left out. One that waits for Python's own
lock wakes up more often."""
PATIENCE = 1.0
"""Seconds for which nobody goes on before a thread that neither waits nor comes to a step is
left out all the same: it may poll natively; one that is new may never begin."""
COMPUTES, LONG = 0.03, 10.0
"""From that part of a core on it computes, and gets so many seconds: it may be at its step
then, but may also compute until somebody else ends it."""
LOOK = 0.05
"""Seconds between two looks that count at most: in longer ones somebody has run."""


class StepChoice:
    """`ready` is the baton's; `let_time_pass` says whether it did, so that somebody may be
    ready now."""

    def __init__(
        self, choices: Choices, ready: deque[Strand], let_time_pass: Callable[[], bool]
    ) -> None:
        self._choices = choices
        self._ready = ready
        self._let_time_pass = let_time_pass
        self._settling = Settling()
        self.on_idle: Callable[[], bool] | None = None
        """Asked before time passes: whether it has let somebody go on."""

    def note(self, strand: Strand, step: Step) -> None:
        """The strand is about to make this step. If it looks in vain it waits for news."""
        if not step.parks and not _can_make(step):
            self._choices.wait(strand, step)

    def next(self, strands: Sequence[Strand], *, stopping: bool) -> Strand | None:
        """Take the strand that goes on out of those that are ready; None if none can. `strands`
        are those that may be outside of the baton: nobody goes on before it is known what they
        are about to do."""
        ready = self._ready
        while True:
            found = self._between_steps()
            if not (found or stopping or self.has_settled(strands)):
                return None
            found = found or self._at_step(in_vain=stopping)
            if found is not None or stopping:
                return found
            if not (self.on_idle is not None and self.on_idle()) and not self._let_time_pass():
                return self._at_step(in_vain=True) if ready else None

    def has_settled(self, strands: Sequence[Strand]) -> bool:
        """Whether it is known of all that are outside what they are about to do. How long they
        take on a busy machine may not show on a virtual clock."""
        return self._settling.is_over(strands)

    def _between_steps(self) -> Strand | None:
        """The first that is about to make no step, or that would park because it cannot. It
        goes on in order of arrival: nobody notices when it computes. So all that may come next
        is known when the choices are asked."""
        for index, strand in enumerate(self._ready):
            step = strand.step
            if step is None or (step.parks and not _can_make(step)):
                del self._ready[index]
                return strand
        return None

    def _at_step(self, *, in_vain: bool = False) -> Strand | None:
        """The one that is picked; with `in_vain` also of those that cannot make their step."""
        able = [each for each in self._ready if in_vain or _can_make(each.step)]
        if not able:
            return None
        if len(able) > 1:
            able.sort(key=_in_order)
        chosen = able[self._choices.pick_strand(able)]
        self._ready.remove(chosen)
        return chosen


def next_callback(strand: Strand, choices: Choices | None) -> Callable[[], None]:
    """Take the pending callback that runs next. Those with a label of what they belong to may
    overtake each other; one that has none is in order, with those behind it."""
    pending = strand.pending_callbacks
    if choices is None or len(pending) < 2:
        return pending.popleft()
    labels: list[str] = []
    for each in pending:
        label = getattr(getattr(each, "__self__", None), "label", None)
        if label is None:
            break
        labels.append(label)
    if len(set(labels)) < 2:
        return pending.popleft()
    step = Step("callback", ("callbacks", strand.rank), writes=True)
    index = choices.pick_value(strand, step, labels)
    chosen = pending[index]
    del pending[index]
    return chosen


def _in_order(strand: Strand) -> tuple[int, int]:
    return strand.rank, strand.number


def _can_make(step: Step | None) -> bool:
    """What can no longer be asked (a store that has lost its server) counts as possible: the
    thread goes on, and its own call raises."""
    if step is None or step.is_possible is None:
        return True
    try:
        return step.is_possible()
    except Exception:
        step.is_possible = None
        return True


class Settling:
    """Threads of ranks that run where the baton does not see them, until they come to a step or
    wait. Which of all the steps goes first can be chosen only then: else the thread that
    happens to be fast would decide. What blocks in native code, for nobody knows how long, is
    left out once it has been asleep for a moment, until it moves again; what goes on and on is
    so when that has lasted, until it has had the baton."""

    def __init__(self) -> None:
        self._asleep: dict[Strand, tuple[float, float]] = {}
        """Threads that look asleep: the time of their processor, and since when."""
        self._awaited: dict[Strand, tuple[int, float, float]] = {}
        """Threads on their way: when they had the baton last, the time of their processor when
        they were first awaited, and how long they are."""
        self._looked = 0.0

    def is_over(self, strands: Sequence[Strand]) -> bool:
        """Whether all of these that are outside wait for something."""
        before, self._looked = self._looked, monotonic()
        passed = min(self._looked - before, LOOK)
        known = [
            _waits(strand, strands) or self._is_left_out(strand) or self._lasts(strand, passed)
            for strand in strands
            if strand.state is OUTSIDE
        ]
        return all(known)

    def _lasts(self, strand: Strand, passed: float) -> bool:
        spent = cpu_time(strand) if strand.ident else 0.0
        granted, before, awaited = self._awaited.get(strand, (-1, spent, 0.0))
        if granted != strand.granted:
            before, awaited = spent, 0.0
        awaited += passed
        self._awaited[strand] = strand.granted, before, awaited
        return awaited >= (LONG if spent - before > COMPUTES * awaited else PATIENCE)

    def _is_left_out(self, strand: Strand) -> bool:
        if not strand.ident:
            return False
        if not is_asleep(strand.native):
            self._asleep.pop(strand, None)
            return False
        now, spent = monotonic(), cpu_time(strand)
        before, since = self._asleep.get(strand, (-1.0, now))
        if before != spent:
            since = now
        self._asleep[strand] = spent, since
        return now - since >= QUIET


def _waits(strand: Strand, strands: Sequence[Strand]) -> bool:
    """Whether it is known what it waits for, and that this has not come."""
    if strand.waits is not None:
        return strand.waits()
    why: Any = strand.why
    is_waiting = getattr(why, "is_waiting", None)
    if is_waiting is not None:
        return bool(is_waiting())
    joined = getattr(why, "thread", None)
    return joined is not None and any(each.thread is joined for each in strands)
