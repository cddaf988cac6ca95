"""Small made-up programs: threads that read, write, wait, choose and meet. No torch, no ranks.

`run_made_up` runs one under a strategy as the baton would. `all_behaviours` tries every order.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.choices import Step
from phalanx.explore.judging import behaviour_of
from phalanx.explore.run_choices import RunChoices
from phalanx.explore.strategy import Strategy
from phalanx.explore.trace import Candidate, Choice, Trace

Op = tuple[Any, ...]
"""("write", place), ("read", place), ("drop", place); ("await", place): until it is above 0;
("both", place, place); ("take", place): the same, and it is one less then; ("value", place,
count); ("meet",): all threads do; ("skip", number): leave out the next op if what was seen last
is that number."""

Program = tuple[tuple[Op, ...], ...]


@dataclass(eq=False)
class Thread:
    rank: int
    ops: Sequence[Op]
    number: int = 0
    step: Step | None = None
    at: int = 0
    seen: list[int] = field(default_factory=list)
    is_meeting: bool = False
    is_noted: bool = False


class Machine:
    def __init__(self, program: Program, strategy: Strategy) -> None:
        self.choices = RunChoices(strategy)
        self.threads = [Thread(rank, ops) for rank, ops in enumerate(program)]
        self.values: dict[Hashable, int] = {}

    def run(self) -> None:
        while True:
            for thread in self.threads:
                self._go_on(thread)
            if self._meet():
                continue
            able = [each for each in self.threads if self._is_able(each)]
            for thread in self.threads:
                if thread.step is not None and thread not in able and not thread.is_noted:
                    thread.is_noted = True
                    self.choices.wait(thread, thread.step)  # type: ignore[arg-type]
            if not able:
                return
            thread = able[self.choices.pick_strand(able)]  # type: ignore[arg-type]
            self._make(thread)

    def seen(self) -> tuple[Any, ...]:
        return tuple((tuple(each.seen), each.at) for each in self.threads)

    def _is_able(self, thread: Thread) -> bool:
        step = thread.step
        if step is None or (step.is_possible is not None and not step.is_possible()):
            return False
        thread.is_noted = False
        return True

    def _go_on(self, thread: Thread) -> None:
        while thread.step is None and thread.at < len(thread.ops) and not thread.is_meeting:
            op = thread.ops[thread.at]
            if op[0] == "skip":
                thread.at += 2 if thread.seen and thread.seen[-1] == op[1] else 1
            elif op[0] == "meet":
                thread.is_meeting = True
            else:
                thread.step = self._step(op)

    def _step(self, op: Op) -> Step:
        def is_there() -> bool:
            return all(self.values.get(place, 0) > 0 for place in op[1:])

        if op[0] in ("await", "take", "both"):
            return Step(op[0], *op[1:], writes=op[0] == "take", is_possible=is_there)
        return Step(op[0], op[1], writes=op[0] != "read")

    def _make(self, thread: Thread) -> None:
        op, step = thread.ops[thread.at], thread.step
        assert step is not None
        value = self.values.get(op[1], 0)
        if op[0] == "write":
            value = self.values[op[1]] = value + 1
        elif op[0] == "take":
            self.values[op[1]] = value - 1
        elif op[0] == "drop":
            self.values[op[1]] = value = 0
        elif op[0] == "value":
            names = [f"{number}" for number in range(op[2])]
            value = self.choices.pick_value(thread, step, names)  # type: ignore[arg-type]
            self.values[op[1]] = value
        thread.seen.append(value)
        thread.step = None
        thread.at += 1

    def _meet(self) -> bool:
        if not all(each.is_meeting for each in self.threads):
            return False
        stamps = [self.choices.stamp(each) for each in self.threads]  # type: ignore[arg-type]
        for thread in self.threads:
            self.choices.learn(thread, stamps)  # type: ignore[arg-type]
            thread.is_meeting, thread.at = False, thread.at + 1
        return True


class EveryOrder:
    """A strategy that tries all alternatives of all choices, whether they matter or not."""

    name = "every"

    def __init__(self) -> None:
        self._path: list[list[int]] = []
        self._is_first = True

    def begin(self) -> bool:
        if self._is_first:
            self._is_first = False
            return True
        while self._path and self._path[-1][0] + 1 >= self._path[-1][1]:
            self._path.pop()
        if self._path:
            self._path[-1][0] += 1
        return bool(self._path)

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        return self._at(len(trace.choices), len(candidates))

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        return self._at(len(trace.choices), len(values))

    def _at(self, depth: int, count: int) -> int:
        if depth == len(self._path):
            self._path.append([0, count])
        return self._path[depth][0]

    def made(self, choice: Choice) -> None: ...

    def in_vain(self, index: int) -> None: ...

    def end(self, trace: Trace) -> None: ...


def run_made_up(program: Program, strategy: Strategy) -> tuple[Hashable, tuple[Any, ...]]:
    """The behaviour, and what threads have seen."""
    machine = Machine(program, strategy)
    machine.run()
    strategy.end(machine.choices.trace)
    return behaviour_of(machine.choices.trace), machine.seen()


def explored(
    program: Program, strategy: Strategy, most: int
) -> Iterator[tuple[Hashable, tuple[Any, ...]]]:
    """What came of each run, until the strategy has nothing left to try; too many raise."""
    for count in itertools.count():
        if not strategy.begin():
            return
        if count >= most:
            raise OverflowError(f"more than {most} runs")
        yield run_made_up(program, strategy)
