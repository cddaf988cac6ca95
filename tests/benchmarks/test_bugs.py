"""The bug benchmark: its programs are well described, correct ones stay silent, and a few wrong
ones get the verdict that they deserve. All of them at once: `python -m benchmarks.bugs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bugs.judging import judge_texts, judge_verdicts
from benchmarks.bugs.places import on_threads
from benchmarks.bugs.programs import CLASSES, OPEN, Program, load, load_scripts
from phalanx.kinds import KINDS

PROGRAMS = {program.id: program for program in load()}
CORRECT = [program for program in PROGRAMS.values() if not program.kinds]
WITHOUT_LINE = {"B29"}
"""What is missing at the end of a program has no line."""

SAMPLE = (
    "A1",
    "B4",
    "E2",
    "E9",
    "E14",
    "F1",
    "F2",
    "F5",
    "F14",
    "F15",
    "F45",
    "I1",
    "K1",
    "K3",
)

# torch 2.13's about names that programs still use, and about DDP on a CPU
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def by_id(program: Program) -> str:
    return program.id


def test_programs_have_ids_of_their_own() -> None:
    assert len(PROGRAMS) == len(load())
    assert set(PROGRAMS) >= OPEN


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=by_id)
def test_program_is_well_described(program: Program) -> None:
    assert program.letter in CLASSES
    assert set(program.kinds) <= {*KINDS, "rank-failed"}
    assert program.what
    assert (program.faulty or set()) <= set(range(program.ranks))
    if program.kinds and program.id not in WITHOUT_LINE:
        assert program.lines


@pytest.mark.parametrize("program", CORRECT, ids=by_id)
def test_correct_program_stays_silent(program: Program) -> None:
    score = judge_verdicts(program, "phalanx", on_threads(program))
    assert score.outcome == "clean", score.said


@pytest.mark.parametrize("id", SAMPLE)
def test_wrong_program_is_named_with_rank_and_line(id: str) -> None:
    score = judge_verdicts(PROGRAMS[id], "phalanx", on_threads(PROGRAMS[id]))
    assert (score.outcome, score.rank, score.line) == ("named", True, True), score.said


SCRIPT = """\
# ranks: 3
# kind: mismatch|deadlock
# faulty: 1
# lines: 13,14
# profile: gloo
# what: one of three ranks skips a collective
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank != 1:
    dist.all_reduce(torch.ones(1))
dist.barrier()
dist.destroy_process_group()
"""


def test_scripts_of_others_are_judged_alike(tmp_path: Path) -> None:
    (tmp_path / "skips.py").write_text(SCRIPT)
    (program,) = load_scripts(tmp_path)
    assert program.kinds == ("mismatch", "deadlock")
    score = judge_verdicts(program, "phalanx", on_threads(program))
    assert (score.outcome, score.rank, score.line) == ("named", True, True), score.said


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is", "named"),
        ("RuntimeError: Connection closed by peer [127.0.0.1]:1", "symptom"),
        ("RuntimeError: Timed out waiting 3000ms for recv operation to complete", "symptom"),
        (None, "silent"),
    ],
)
def test_texts_of_gloo_are_judged_by_their_words(text: str | None, outcome: str) -> None:
    program = PROGRAMS["F2"]
    results = [
        {"rank": rank, "error": text, "lines": [], "seconds": 1.0}
        for rank in range(program.ranks)
    ]
    score = judge_texts(program, "gloo", results, [0, 0, 0], ["", "", ""], hung=False)
    assert score.outcome == outcome
