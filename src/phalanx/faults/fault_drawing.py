"""Draw plans of faults from a seed, for a run whose shape is known.

A plan is a function of the kinds, the seed and the shape alone, so that the seed repeats it.
Most plans have one fault: what one fault alone breaks is the easiest to read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.errors import UsageError
from phalanx.faults.fault_points import Point, call, line, moment, store
from phalanx.faults.fault_values import (
    FAULTS,
    PARTS,
    Fault,
    Kill,
    Plan,
    corrupt,
    delay,
    drop_store,
    kill,
    partition,
    raise_,
    stop,
)

DURATIONS = (0.1, 1.0, 10.0, 60.0, 900.0, 3600.0)
"""Seconds, among which those of delays, stops and losses are drawn: below and above the usual
timeouts of groups and stores."""
ERRORS = (RuntimeError, MemoryError, OSError, ValueError)
MOST_FAULTS = 3


@dataclass(frozen=True)
class RunShape:
    """What a run without faults was like: where faults can be."""

    ranks: int
    calls: Sequence[int]
    """How many calls of its groups each rank makes."""
    stores: Sequence[int] = ()
    """How many operations on stores."""
    lines: Sequence[Mapping[str, int]] = ()
    """Which lines of the program each rank comes to, as `"train.py:40"`, and how often."""
    seconds: float = 0.0
    """How long it takes by its clock."""

    def points_of(self, rank: int) -> list[Callable[[random.Random], Point]]:
        """What draws a point where this rank comes by, one for each kind of point."""
        found: list[Callable[[random.Random], Point]] = []
        calls, stores = _of(self.calls, rank, 0), _of(self.stores, rank, 0)
        lines: Mapping[str, int] = _of(self.lines, rank, {})
        if calls:
            found.append(lambda dice: call(dice.randint(1, calls)))
        if stores:
            found.append(lambda dice: store(dice.randint(1, stores)))
        if lines:
            found.append(lambda dice: _draw_line(dice, lines))
        if self.seconds > 0:
            found.append(lambda dice: moment(round(dice.uniform(0, self.seconds), 3)))
        return found


def read_kinds(given: str | Iterable[str]) -> tuple[str, ...]:
    """Kinds of faults, as `"kill,delay"` or as words."""
    words = given.split(",") if isinstance(given, str) else list(given)
    kinds = tuple(dict.fromkeys(word.strip() for word in words))
    known = {"raise" if kind == "raise_" else kind: kind for kind in FAULTS}
    for kind in kinds:
        if kind not in known and kind not in FAULTS:
            raise UsageError(
                f"faults {given!r}: there is no kind {kind!r}; choose among {', '.join(known)}"
            )
    return tuple(known.get(kind, kind) for kind in kinds)


def draw_plan(kinds: str | Iterable[str], seed: int, shape: RunShape) -> Plan:
    """One fault, sometimes two or three, of these kinds. Empty if none of them can be in a run
    of this shape: without calls nothing can be corrupted.

    >>> draw_plan("kill", 3, RunShape(ranks=2, calls=[5, 5]))
    (kill(rank=1, at=call(5)),)
    """
    dice = random.Random(f"faults {seed}")
    wanted = read_kinds(kinds)
    count = min(MOST_FAULTS, 1 + (dice.random() < 0.25) + (dice.random() < 0.1))
    plan: list[Fault] = []
    for _ in range(count):
        fault = _DRAWN[dice.choice(wanted)](dice, shape)
        if fault is not None and not _is_too_much(fault, plan, shape):
            plan.append(fault)
    return tuple(plan)


def _is_too_much(fault: Fault, plan: Sequence[Fault], shape: RunShape) -> bool:
    """A rank dies once, and one is to be left."""
    killed = [each.rank for each in plan if isinstance(each, Kill)]
    if not isinstance(fault, Kill):
        return fault in plan
    return fault.rank in killed or len(killed) + 1 >= max(2, shape.ranks)


def _draw_place(dice: random.Random, shape: RunShape) -> tuple[int, Point] | None:
    """A rank, and a point that it comes to."""
    ranks = [rank for rank in range(shape.ranks) if shape.points_of(rank)]
    if not ranks:
        return None
    rank = dice.choice(ranks)
    return rank, dice.choice(shape.points_of(rank))(dice)


def _draw_line(dice: random.Random, lines: Mapping[str, int]) -> Point:
    """Any line, and of one that is passed often the first time or any."""
    place = dice.choice(list(lines))
    often = lines[place] > 1 and dice.random() < 0.5
    return line(place, dice.randint(1, lines[place]) if often else 1)


def _draw_kill(dice: random.Random, shape: RunShape) -> Fault | None:
    place = _draw_place(dice, shape)
    return place and kill(rank=place[0], at=place[1])


def _draw_delay(dice: random.Random, shape: RunShape) -> Fault | None:
    place, seconds = _draw_place(dice, shape), dice.choice(DURATIONS)
    return place and delay(rank=place[0], seconds=seconds, at=place[1])


def _draw_stop(dice: random.Random, shape: RunShape) -> Fault | None:
    place, seconds = _draw_place(dice, shape), dice.choice(DURATIONS)
    return place and stop(rank=place[0], seconds=seconds, at=place[1])


def _draw_raise(dice: random.Random, shape: RunShape) -> Fault | None:
    place, error = _draw_place(dice, shape), dice.choice(ERRORS)
    return place and raise_(error("injected"), rank=place[0], at=place[1])


def _draw_partition(dice: random.Random, shape: RunShape) -> Fault | None:
    if shape.ranks < 2:
        return None
    ranks = list(range(shape.ranks))
    dice.shuffle(ranks)
    cut = dice.randint(1, len(ranks) - 1)
    start = round(dice.choice((0.0, dice.uniform(0, shape.seconds))), 3)
    end = start + dice.choice(DURATIONS)
    return partition(sorted(ranks[:cut]), sorted(ranks[cut:]), during=(start, end))


def _draw_drop_store(dice: random.Random, shape: RunShape) -> Fault | None:
    ranks = [rank for rank in range(shape.ranks) if _of(shape.stores, rank, 0)]
    if not ranks:
        return None
    rank = dice.choice(ranks)
    at, seconds = store(dice.randint(1, shape.stores[rank])), dice.choice((None, *DURATIONS))
    return drop_store(rank=rank, at=at, seconds=seconds)


def _draw_corrupt(dice: random.Random, shape: RunShape) -> Fault | None:
    ranks = [rank for rank in range(shape.ranks) if _of(shape.calls, rank, 0)]
    if not ranks:
        return None
    rank = dice.choice(ranks)
    return corrupt(
        rank=rank,
        call=dice.randint(1, shape.calls[rank]),
        bits=dice.randint(1, 3),
        part=dice.choice(PARTS),
        seed=dice.randrange(1000),
    )


_DRAWN: dict[str, Callable[[random.Random, RunShape], Fault | None]] = {
    "kill": _draw_kill,
    "delay": _draw_delay,
    "partition": _draw_partition,
    "drop_store": _draw_drop_store,
    "corrupt": _draw_corrupt,
    "raise_": _draw_raise,
    "stop": _draw_stop,
}


def _of(figures: Sequence[object], rank: int, default: object) -> Any:
    return figures[rank] if rank < len(figures) else default
