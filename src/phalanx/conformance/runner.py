"""Run cases on worlds of ranks and judge them.

Cases are sent to the ranks in *chunks*, because to start a run costs more than most cases. A
case that hangs, crashes or leaves the ranks at different places costs only itself and another
run of the rest of its chunk: ranks leave a trail, and the case at which it ends is run again
alone.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from io import StringIO
from tempfile import TemporaryDirectory

import torch

from phalanx.backend.profiles import profile_of
from phalanx.conformance import case_body
from phalanx.conformance.case_model import Case, Report, Result, Setting, Table
from phalanx.conformance.judge import Refusal, judge, judge_lost, known_refusal, taking_part
from phalanx.engines.world import World
from phalanx.errors import DeadlockError, PhalanxError, StallError

CHUNK = 40
TRIES = 2
"""How often a world is tried to be made before the suite is given up."""

Progress = Callable[[Result], None]


class NoWorldError(PhalanxError):
    """The backend cannot even make its default group."""


@dataclass(frozen=True)
class _Lost:
    """Why a chunk brought no reports, and how many of its cases all ranks had begun."""

    reason: str
    hung: bool
    begun: int


def run_suite(cases: Sequence[Case], setting: Setting, on_result: Progress) -> Table:
    """Run all cases, in order of their numbers of ranks; results in the order of `cases`."""
    start = time.monotonic()
    found: dict[str, Result] = {}
    with TemporaryDirectory(prefix="phalanx-") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        placed = replace(setting, scratch=scratch)
        hanging: set[str] = set()
        for ranks in sorted({case.ranks for case in cases}):
            with _Bench(placed, ranks, hanging) as bench:
                for result in bench.run([case for case in cases if case.ranks == ranks]):
                    found[result.id] = result
                    on_result(result)
    return Table(
        engine=setting.engine,
        backend=setting.backend,
        torch=torch.__version__,
        seconds=round(time.monotonic() - start, 1),
        results=tuple(found[case.id] for case in cases),
    )


class _Bench:
    """A world for one number of ranks, replaced by a new one whenever a case broke it.

    `hanging` has the operations of which a case hung twice: their hangs are believed at once.
    """

    _tokens = itertools.count()

    def __init__(self, setting: Setting, ranks: int, hanging: set[str]) -> None:
        self._setting = setting
        self._ranks = ranks
        self._known = profile_of(setting.backend) is not None
        self._world: World | None = None
        self._token = ""
        self._hanging = hanging
        self._hung: set[str] = set()

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(broken=kind is not None)

    def run(self, cases: Sequence[Case]) -> Iterator[Result]:
        """Each case's result. What fails on processes gets a second chance, alone and on new
        processes: a new connection on a loaded machine may hang once. An operation that hung
        twice gets no more of them."""
        again = {}
        for result in self._run_once(cases):
            if result.outcome == "fail" and self._setting.engine == "processes":
                again[result.id] = result
            else:
                yield result
        for case in cases:
            if case.id not in again:
                continue
            if case.id in self._hung and case.operation in self._hanging:
                yield again[case.id]
            else:
                self._close(broken=True)
                yield from self._run_once([case])

    def _run_once(self, cases: Sequence[Case]) -> Iterator[Result]:
        pending = deque(_chunks(cases, self._may_part))
        while pending:
            chunk = pending.popleft()
            rules = [self._rule_of(case) for case in chunk]
            reports = self._reports(chunk)
            if isinstance(reports, _Lost):
                self._close(broken=True)
                guilty = max(0, min(reports.begun, len(chunk)) - 1)
                case = chunk[guilty]
                parts = [chunk[:guilty], [case], chunk[guilty + 1 :]]
                if self._is_believed(case, reports) or len(chunk) == 1:
                    yield judge_lost(case, reports.reason, rules[guilty])
                    del parts[1]
                pending.extendleft(reversed([each for each in parts if each]))
                continue
            done = _in_step(chunk, reports)
            for index in range(done):
                each = [of_rank[index] for of_rank in reports]
                yield self._judge(chunk[index], each, rules[index])
            if done == len(chunk):
                continue
            self._close(broken=True)
            if len(chunk) == 1:
                yield self._judge(chunk[0], _patched(reports), rules[0])
            else:
                rest = [chunk[done : done + 1], chunk[done + 1 :]]
                pending.extendleft(reversed([each for each in rest if each]))

    def _is_believed(self, case: Case, lost: _Lost) -> bool:
        """Whether the case needs no run alone: one more hang of an operation known for it."""
        if not lost.hung:
            return False
        believed = case.operation in self._hanging
        if case.id in self._hung:
            self._hanging.add(case.operation)
        self._hung.add(case.id)
        return believed

    def _may_part(self, case: Case) -> bool:
        """Whether the case may leave the ranks at different places: by itself, or because a
        backend may refuse it to one rank while others wait for that one."""
        refused = bool(case.needs) and not (self._known and self._rule_of(case) is None)
        return case.alone or refused

    def _rule_of(self, case: Case) -> Refusal | None:
        return known_refusal(case, self._setting.backend, self._setting.device)

    def _judge(self, case: Case, reports: Sequence[Report], rule: Refusal | None) -> Result:
        return judge(case, reports, rule, known=self._known)

    def _reports(self, chunk: Sequence[Case]) -> list[list[Report]] | _Lost:
        """Each rank's reports, or why there are none."""
        with redirect_stderr(StringIO()):  # what native code says of errors we provoke
            world = self._open(bare=chunk[0].bare)
            try:
                return world.run(case_body.carry_out, self._setting, self._token, chunk)
            except PhalanxError as error:
                begun = case_body.begun(self._setting, self._token, self._ranks)
                hung = isinstance(error, (StallError, DeadlockError))
                return _Lost(_first_line(error), hung, begun)

    def _open(self, *, bare: bool) -> World:
        for tried in itertools.count(1):
            if self._world is not None:
                return self._world
            self._token = f"w{next(self._tokens)}"
            self._world = World(
                ranks=self._ranks,
                engine=self._setting.engine,
                init=False,
                timeout=self._setting.timeout,
                # What is judged on processes is the backend, not what our checks make of it.
                checks="none" if self._setting.engine == "processes" else "all",
            )
            if bare:
                continue
            try:
                self._world.run(case_body.enter, self._setting, self._token)
            except PhalanxError as error:
                self._close(broken=True)
                if tried == TRIES:
                    raise NoWorldError(
                        f"{self._setting.backend} makes no group of {self._ranks} ranks, tried "
                        f"{TRIES} times: {_first_line(error)}"
                    ) from error
        raise AssertionError("itertools.count has no end")

    def _close(self, *, broken: bool) -> None:
        world, self._world = self._world, None
        if world is None:
            return
        try:
            if not broken:
                with suppress(PhalanxError):
                    world.run(case_body.leave, self._token)
        finally:
            case_body.forget(self._token)
            world.close()


def _first_line(error: PhalanxError) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _chunks(cases: Sequence[Case], is_alone: Callable[[Case], bool]) -> Iterator[list[Case]]:
    """Lists of cases for one run each; a case that may break things is a list of its own."""
    several: list[Case] = []
    for case in cases:
        if is_alone(case) or case.bare:
            continue
        several.append(case)
        if len(several) == CHUNK:
            yield several
            several = []
    if several:
        yield several
    yield from ([case] for case in cases if is_alone(case) and not case.bare)
    yield from ([case] for case in cases if case.bare)


def _in_step(chunk: Sequence[Case], reports: Sequence[Sequence[Report]]) -> int:
    """How many cases the ranks did side by side. From the first one on that some ranks could
    do and others could not, they may be at different places, and nothing counts any more."""
    for index, case in enumerate(chunk):
        if min(map(len, reports)) <= index:
            return index
        errors = {r for r, of_rank in enumerate(reports) if of_rank[index].status == "error"}
        if errors and not errors >= taking_part(case) and case.everywhere:
            return index
    return len(chunk)


def _patched(reports: Sequence[Sequence[Report]]) -> list[Report]:
    missing = Report("unmet", "did not come this far")
    return [of_rank[0] if of_rank else missing for of_rank in reports]
