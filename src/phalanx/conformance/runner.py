"""Runs cases on worlds of ranks and judges them.

Cases go to the ranks in *chunks*, because starting a run costs more than most cases. A case
that hangs, crashes or leaves the ranks at different places costs itself and one more run of
its chunk's rest, not the suite: a chunk that brings no reports at all is halved until the
guilty case stands alone.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from io import StringIO
from tempfile import TemporaryDirectory

import torch

from phalanx.backend.profiles import profile_of
from phalanx.conformance import body
from phalanx.conformance.judge import Refusal, judge, known_refusal, taking_part
from phalanx.conformance.model import Case, Report, Result, Setting, Table
from phalanx.errors import PhalanxError
from phalanx.running.world import World

CHUNK = 40
STANDSTILL = 30.0
"""Seconds after which a run in which nothing happens any more is given up."""

Progress = Callable[[Result], None]


def run_suite(cases: Sequence[Case], setting: Setting, on_result: Progress) -> Table:
    """Run all cases, in order of their numbers of ranks; results in the order of `cases`."""
    start = time.monotonic()
    found: dict[str, Result] = {}
    with TemporaryDirectory(prefix="phalanx-") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        placed = Setting(
            setting.engine, setting.backend, setting.device, setting.imports, scratch
        )
        for ranks in sorted({case.ranks for case in cases}):
            with _Bench(placed, ranks) as bench:
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
    """A world for one number of ranks, replaced by a new one whenever a case broke it."""

    _tokens = itertools.count()

    def __init__(self, setting: Setting, ranks: int) -> None:
        self._setting = setting
        self._ranks = ranks
        self._known = profile_of(setting.backend) is not None
        self._world: World | None = None
        self._token = ""

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._close(broken=False)

    def run(self, cases: Sequence[Case]) -> Iterator[Result]:
        """Each case's result. What fails on processes gets a second chance, alone and on new
        processes: a new connection on a loaded machine may hang once."""
        again = set()
        for result in self._run_once(cases):
            if result.outcome == "fail" and self._setting.engine == "processes":
                again.add(result.id)
            else:
                yield result
        for case in cases:
            if case.id in again:
                self._close(broken=True)
                yield from self._run_once([case])

    def _run_once(self, cases: Sequence[Case]) -> Iterator[Result]:
        pending = deque(_chunks(cases, self._may_part))
        while pending:
            chunk = pending.popleft()
            rules = [self._rule_of(case) for case in chunk]
            reports = self._reports(chunk)
            if isinstance(reports, str):
                self._close(broken=True)
                if len(chunk) > 1:
                    half = len(chunk) // 2
                    pending.extendleft([chunk[half:], chunk[:half]])
                else:
                    yield self._judge(chunk[0], [Report("unmet", reports)], rules[0])
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

    def _may_part(self, case: Case) -> bool:
        """Whether the case may leave the ranks at different places: by itself, or because a
        backend may refuse it to one rank while others wait for that one."""
        refused = bool(case.needs) and not (self._known and self._rule_of(case) is None)
        return case.alone or refused

    def _rule_of(self, case: Case) -> Refusal | None:
        return known_refusal(case, self._setting.backend, self._setting.device)

    def _judge(self, case: Case, reports: Sequence[Report], rule: Refusal | None) -> Result:
        return judge(case, reports, rule, known=self._known)

    def _reports(self, chunk: Sequence[Case]) -> list[list[Report]] | str:
        """Each rank's reports, or why there are none."""
        world = self._open()
        try:
            with redirect_stderr(StringIO()):  # what native code says of errors we provoke
                return world.run(body.carry_out, self._setting, self._token, chunk)
        except PhalanxError as error:
            return str(error).strip().partition("\n")[0] or type(error).__name__

    def _open(self) -> World:
        if self._world is None:
            self._token = f"w{next(self._tokens)}"
            self._world = World(
                ranks=self._ranks,
                engine=self._setting.engine,
                init=False,
                timeout=STANDSTILL,
            )
        return self._world

    def _close(self, *, broken: bool) -> None:
        world, self._world = self._world, None
        if world is None:
            return
        try:
            if not broken:
                with suppress(PhalanxError):
                    world.run(body.leave, self._token)
        finally:
            body.forget(self._token)
            world.close()


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
