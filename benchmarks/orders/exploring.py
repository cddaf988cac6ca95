"""Explore the programs: in which schedule each strategy finds the bug, how small the failure
becomes, whether its token repeats it, and how many behaviours the right programs have.

Figures are plain dictionaries, as JSON keeps them; `orders_page.py` reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.orders.programs import Program
from benchmarks.orders.stored_runs import Stored, is_exact
from phalanx.core.choices import Choices
from phalanx.emulation.modules.isolation_rule import script_rule
from phalanx.engines.program import load_script
from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.explore_options import EXPLORING, ExploreOptions
from phalanx.explore.explorer import ExploreProgress, Explorer
from phalanx.explore.one_run import RunOutcome, run_once
from phalanx.explore.strategies import make_strategy
from phalanx.explore.subjects import ScriptSubject
from phalanx.explore.tokens import read_token, token_of
from phalanx.faults import parse_faults
from phalanx.options import EXPLORE_DEFAULTS, Options

SEARCHES = ("pos", "pct", "random")
FEW = 1_000
"""Behaviours: a right program with fewer must be proved."""

Figures = dict[str, Any]


def run_explore(options: argparse.Namespace, programs: list[Program]) -> int:
    """Explore the programs and write what was asked for. What the file has of others stays."""
    file = Path(options.json or "orders.json")
    known: dict[str, Figures] = json.loads(file.read_text()) if file.exists() else {}
    for figures in measured(options, programs):
        known[figures["id"]] = figures
        _write(file, known)
        print(line_of(figures), flush=True)
    if options.write:
        from benchmarks.orders.orders_page import document, read_gloo, read_replays

        page = document(
            known, gloo=read_gloo(options.gloo_json), replays=read_replays(options.replays_json)
        )
        Path(options.write).write_text(page)
    return 0


def measured(options: argparse.Namespace, programs: list[Program]) -> Iterator[Figures]:
    """The figures of each program, in the order in which they are ready."""
    if options.page_only:
        return
    if options.jobs == 1:
        for program in programs:
            yield measure(program, options.seeds, options.limit)
        return
    measure_each = functools.partial(measure, seeds=options.seeds, limit=options.limit)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(measure_each, programs)


def _write(file: Path, known: dict[str, Figures]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(dict(sorted(known.items())), indent=1))
    os.replace(new, file)


def line_of(figures: Figures) -> str:
    """What came of a program, for the terminal."""
    told = []
    for name in SEARCHES:
        found = figures["searches"][name]
        first = [each["found"] or "-" for each in found]
        told.append(f"{name} {' '.join(map(str, first))}")
        told += [f"OTHER {other}" for each in found for other in each["others"]][:2]
    sizes = {each["size"] for name in SEARCHES for each in figures["searches"][name]} - {None}
    exact = [each["exact"] for name in SEARCHES for each in figures["searches"][name]]
    if sizes:
        told.append(f"shrunk to {sorted(sizes)} of {figures['minimum']}")
    if False in exact:
        told.append("REPLAY NOT EXACT")
    every = figures["exhaustive"]
    proof = "all" if every["complete"] else "more than"
    told.append(f"{proof} {every['behaviours']} behaviours, {every['failed']} fail")
    return f"{figures['id']}: {'; '.join(told)}; {figures['seconds']:.1f} s"


# -- one program ----------------------------------------------------------------------------


def measure(program: Program, seeds: int, limit: int) -> Figures:
    """All that is measured of one program."""
    gc.freeze()  # as the command line does: each restart collects garbage
    began = time.perf_counter()
    return {
        "id": program.id,
        "minimum": program.minimum,
        "searches": {
            name: [search(program, name, seed, limit) for seed in range(seeds)]
            for name in SEARCHES
        },
        "exhaustive": explore_all(program),
        "samples": [] if program.is_wrong else sample_tokens(program),
        "seconds": round(time.perf_counter() - began, 2),
    }


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    before, folder = os.getcwd(), tempfile.mkdtemp(prefix="orders_")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


class _SubjectInFolder(ScriptSubject):
    """Each run has a folder of its own: what one leaves there no other finds."""

    def run(self, choices: Choices) -> RunOutcome:
        with own_folder():
            return super().run(choices)


def subject_of(program: Program) -> ScriptSubject:
    script = load_script(str(program.path), [])
    given = {**EXPLORE_DEFAULTS, "max_restarts": program.restarts}
    options = Options(ranks=program.ranks, init=False, **given)
    return _SubjectInFolder(
        script, options, rule=lambda: script_rule((), (), script.search_path)
    )


def search(program: Program, strategy: str, seed: int, limit: int) -> Figures:
    """What a strategy finds within so many schedules."""
    asked = ExploreOptions.of(
        strategy=strategy, seed=seed, schedules=limit, faults=program.faults, store=None
    )
    subject = subject_of(program)
    began = time.perf_counter()
    try:
        found = Explorer(subject, asked).run()
        return {
            "seed": seed,
            "schedules": found.schedules,
            "behaviours": found.behaviours,
            "notes": list(found.notes),
            "seconds": round(time.perf_counter() - began, 2),
            **_judged(program, subject, found),
        }
    finally:
        subject.close()


def _judged(program: Program, subject: ScriptSubject, found: Exploration) -> Figures:
    right = [each for each in found.failures if fits(program, each)]
    others = [each for each in found.failures if not fits(program, each)]
    best = min(right, key=lambda each: (size_of(each), each.first), default=None)
    return {
        "found": min((each.first for each in right), default=None),
        "failed": sum(each.schedules for each in right),
        "size": None if best is None else size_of(best),
        "token": None if best is None else best.token,
        "fingerprint": None if best is None else best.fingerprint,
        "exact": None
        if best is None
        else is_exact(subject, Stored(best.token, best.fingerprint)),
        "others": [
            f"{each.kind} at {sorted(lines_of(program, each))}: {each.title}" for each in others
        ],
    }


def fits(program: Program, failure: ExplorationFailure) -> bool:
    """Whether it is the bug of this program: its kind, and one of its lines is named."""
    return failure.kind in program.kinds and not lines_of(program, failure).isdisjoint(
        program.lines
    )


def lines_of(program: Program, failure: ExplorationFailure) -> set[int]:
    """The program's lines that the story and the report name; not where others were stopped."""
    told = [line for line in failure.story.splitlines() if not line.startswith("  stopped")]
    pattern = rf"{re.escape(program.path.name)}:(\d+)"
    return {int(number) for number in re.findall(pattern, "\n".join(told))}


def size_of(failure: ExplorationFailure) -> int:
    """Its choices that differ from the default order, and its faults."""
    token = read_token(failure.token)
    return len(token.deviations) + len(parse_faults(token.faults) if token.faults else ())


class _Enough(Exception):
    """More behaviours than few."""


def explore_all(program: Program) -> Figures:
    """All behaviours without faults, if they are few."""

    def look(progress: ExploreProgress) -> None:
        if progress.stage == EXPLORING and progress.behaviours >= FEW:
            raise _Enough

    subject = subject_of(program)
    asked = ExploreOptions(strategy="exhaustive", schedules=10 * FEW, store=None)
    explorer = Explorer(subject, asked, look)
    began = time.perf_counter()
    try:
        with contextlib.suppress(_Enough):
            explorer.run()
        found = explorer.result()
    finally:
        subject.close()
    return {
        "complete": found.complete,
        "behaviours": found.behaviours,
        "schedules": found.schedules,
        "failed": sum(each.behaviours for each in found.failures),
        "failures": [f"{each.kind}: {each.title}" for each in found.failures],
        "notes": list(found.notes),
        "seconds": round(time.perf_counter() - began, 2),
    }


def sample_tokens(program: Program) -> list[Figures]:
    """Some runs of a right program, for replays: one of each strategy."""
    subject = subject_of(program)
    found = []
    try:
        for name in SEARCHES:
            strategy = make_strategy(name, 0)
            for _ in range(3):
                strategy.begin()
                execution = run_once(subject, strategy)
            token = str(token_of(program.ranks, execution.trace))
            found.append({"token": token, "fingerprint": execution.fingerprint})
    finally:
        subject.close()
    return found
