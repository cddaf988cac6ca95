"""Marks about findings: `ranks_expect` and `ranks_silence`, and the choice of kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.testing.collection.expected_findings import EXPECT, SILENCE, reasons_in
from tests.testing.pytest_runs import run_many, run_pytest

TESTS = """
import pytest
import torch
import torch.distributed as dist

because = pytest.mark.ranks_expect("deadlock", reason="the ring is the point")
heard = pytest.mark.ranks_expect("unmatched-message", reason="nobody listens")
dropped = pytest.mark.ranks_silence("unwaited-work", reason="dropped on purpose")

def leave_a_message(rank):
    if rank:
        dist.isend(torch.ones(1), 0)

@because
@pytest.mark.ranks(2)
def test_ring(rank):
    dist.recv(torch.ones(1), 1 - rank)

@because
@pytest.mark.ranks(2)
def test_nothing(rank):
    dist.barrier()

@because
@pytest.mark.ranks(2)
def test_another_kind(rank):
    dist.barrier() if rank else dist.all_reduce(torch.ones(1))

@because
@pytest.mark.ranks(2)
def test_its_own_error(rank):
    assert rank == 0

@because
@pytest.mark.ranks(2)
def test_skipped():
    pytest.skip("not here")

@dropped
class TestMessages:
    pytestmark = [heard, dropped]

    @pytest.mark.ranks(2)
    def test_warning(self, rank):
        leave_a_message(rank)

    @pytest.mark.ranks(2, strict=True)
    def test_strict(self, rank):
        leave_a_message(rank)

    @pytest.mark.ranks_expect("leak", reason="there is none")
    @pytest.mark.ranks(2, strict=True)
    def test_one_of_two(self, rank):
        leave_a_message(rank)

@pytest.mark.ranks_silence("unmatched-message", reason="nobody listens")
@dropped
@pytest.mark.ranks(2, strict=True)
def test_silenced(rank):
    leave_a_message(rank)

@dropped
@pytest.mark.ranks(2, strict=True)
def test_silenced_by_its_line(rank):
    if rank:
        dist.isend(torch.ones(1), 0)  # phalanx: ignore[unmatched-message] who cares

@pytest.mark.ranks(2, strict=True, checks="mismatch")
def test_not_chosen(rank):
    leave_a_message(rank)

@pytest.mark.ranks_expect("invalid-call", reason="ours")
@pytest.mark.ranks(2)
def test_invalid():
    dist.broadcast(torch.ones(1), 7)

@pytest.mark.ranks_expect("invalid-call", reason="torch's own")
@pytest.mark.ranks(2)
def test_invalid_by_torch(rank):
    dist.send(torch.ones(1), rank)

@because
def test_not_on_ranks():
    pass
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list:
    folder = tmp_path_factory.mktemp("expected")
    files = {"test_kinds.py": TESTS, "pytest.ini": "[pytest]\nranks_checks = all,-leak\n"}
    strictly = [
        "--ranks-strict",
        "--ranks-checks",
        "leak",
        "-k",
        "test_silenced[ or chosen or warning",
    ]
    wrong = [["--ranks-checks", "leek"], ["--ranks-profile", "mpi"], ["--markers"]]
    return run_many(folder, [["-rA"], strictly, *wrong], files=files)


def test_expected_and_silenced_kinds(runs: list) -> None:
    ran = runs[0]
    assert ran.outcomes == {
        "test_ring[ranks=2]": "PASSED",
        "test_nothing[ranks=2]": "FAILED",
        "test_another_kind[ranks=2]": "FAILED",
        "test_its_own_error[ranks=2]": "FAILED",
        "test_kinds.py:37": "SKIPPED",
        "TestMessages::test_warning[ranks=2]": "PASSED",
        "TestMessages::test_strict[ranks=2]": "PASSED",
        "TestMessages::test_one_of_two[ranks=2]": "FAILED",
        "test_silenced[ranks=2]": "PASSED",
        "test_silenced_by_its_line[ranks=2]": "PASSED",
        "test_not_chosen[ranks=2]": "PASSED",
        "test_invalid[ranks=2]": "PASSED",
        "test_invalid_by_torch[ranks=2]": "PASSED",
        "test_not_on_ranks": "ERROR",
    }
    assert "PhalanxWarning" not in ran.text


def test_reasons_are_shown(runs: list) -> None:
    ran = runs[0]
    ring = ran.section("test_ring[ranks=2]")
    assert "[deadlock] ranks 0 and 1 wait for each other; no rank can continue" in ring
    assert "expected: the ring is the point" in ring
    assert "[unmatched-message]: nobody listens" in ran.section("test_silenced[ranks=2]")
    by_line = ran.section("test_silenced_by_its_line[ranks=2]")
    assert "[unmatched-message] at test_kinds.py:66: who cares" in by_line


def test_what_fails_says_what_was_expected(runs: list) -> None:
    ran = runs[0]
    told = "ranks_expect('deadlock', reason='the ring is the point'): the checks found"
    assert ran.section("test_nothing[ranks=2]").count(f"{told} nothing\n") == 1
    other = ran.section("test_another_kind[ranks=2]")
    assert other.startswith("CollectiveMismatchError: rank 0 called all_reduce where rank 1")
    assert f"{told} only mismatch\n" in other
    assert "assert 1 == 0" in ran.section("test_its_own_error[ranks=2]")
    assert "put @pytest.mark.ranks(N) on test_kinds.py::test_not_on_ranks as well" in ran.text


def test_options_choose_kinds_and_are_checked(runs: list) -> None:
    _, strictly, kinds, profile, markers = runs
    assert "3 passed" in strictly.text, "what is expected is looked for all the same"
    assert "ERROR: --ranks-checks leek: there is no kind 'leek'; did you mean" in kinds.text
    assert "ERROR: --ranks-profile mpi: give gloo or nccl" in profile.text
    assert "@pytest.mark.ranks_expect(*kinds, reason)" in markers.text
    assert "@pytest.mark.ranks_silence(*kinds, reason)" in markers.text


@pytest.mark.slow
def test_on_processes(tmp_path: Path) -> None:
    chosen = "ring or another_kind or test_silenced"
    ran = run_pytest(
        tmp_path,
        "-rA",
        "--ranks-engine=processes",
        "-k",
        chosen,
        files={"test_kinds.py": TESTS},
    )
    assert ran.outcomes["test_ring[ranks=2]"] == "PASSED"
    assert ran.outcomes["test_another_kind[ranks=2]"] == "FAILED"
    assert ran.outcomes["test_silenced[ranks=2]"] == "PASSED"


class Mark:
    def __init__(self, name: str, *args: object, **kwargs: object) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs

    def __str__(self) -> str:
        return f"{self.name}{self.args}{self.kwargs}"


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        (Mark(EXPECT, reason="x"), "says no kind; write @pytest.mark.ranks_expect('leak'"),
        (Mark(EXPECT, "leek", reason="x"), "there is no kind 'leek'; kinds are invalid-call"),
        (Mark(EXPECT, "leak"), "a reason is needed, for those who read it"),
        (Mark(EXPECT, "leak", reason=" "), "a reason is needed, for those who read it"),
        (Mark(EXPECT, "leak", reason="x", why=1), "unknown keyword 'why'; allowed: reason"),
        (Mark(SILENCE, "deadlock", reason="x"), "ends the run, so it cannot be silenced"),
    ],
    ids=str,
)
def test_marks_are_checked(mark: Mark, told: str) -> None:
    with pytest.raises(UsageError, match=r"^ranks_(expect|silence)\(") as caught:
        reasons_in([mark], mark.name)
    assert told in str(caught.value)


def test_the_closest_reason_counts() -> None:
    marks = [Mark(SILENCE, "leak", reason="near"), Mark(SILENCE, "leak", reason="far")]
    assert reasons_in(marks, SILENCE) == (("leak", "near"),)
    assert reasons_in(marks, EXPECT) == ()
