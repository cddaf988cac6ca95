"""From reports to outcomes, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from phalanx.conformance.case_model import Case, Report
from phalanx.conformance.judge import applies, judge, known_refusal
from phalanx.conformance.suite import all_cases

RIGHT = Report("right")
WRONG = Report("wrong", "result: [1] instead of [2]")
UNMET = Report("unmet", "returned None")
ERROR = Report("error", "RuntimeError: no", ("RuntimeError", "Exception"))

BY_ID = {case.id: case for case in all_cases([3])}
PLAIN = BY_ID["all_reduce/float32/sum/sync@3"]
SUB = BY_ID["all_reduce/float32/sum/sync/sub@3"]
REFUSED = BY_ID["all_reduce/int16/sum/sync@3"]
MISTAKE = BY_ID["all_gather/mistake/list-too-short@3"]
ONE_SIDED = BY_ID["all_gather/mistake/list-too-short-on-one-rank@3"]


def outcome(case: Case, reports: Sequence[Report], *, known: bool = True) -> str:
    rule = known_refusal(case, "gloo", "cpu") if known else None
    return judge(case, reports, rule, known=known).outcome


@pytest.mark.parametrize(
    ("case", "reports", "expected"),
    [
        (PLAIN, [RIGHT] * 3, "pass"),
        (PLAIN, [RIGHT, WRONG, RIGHT], "WRONG"),
        (PLAIN, [ERROR, WRONG, ERROR], "WRONG"),
        (PLAIN, [RIGHT, UNMET, RIGHT], "fail"),
        (PLAIN, [ERROR] * 3, "fail"),
        (PLAIN, [ERROR, RIGHT, RIGHT], "fail"),
        (REFUSED, [ERROR] * 3, "refuse"),
        (REFUSED, [ERROR, ERROR, RIGHT], "fail"),
        (REFUSED, [RIGHT] * 3, "pass"),
        (REFUSED, [WRONG] * 3, "WRONG"),
        (MISTAKE, [ERROR] * 3, "pass"),
        (MISTAKE, [ERROR, ERROR, RIGHT], "fail"),
        (MISTAKE, [RIGHT] * 3, "fail"),
        (MISTAKE, [Report("error", "TypeError: x", ("TypeError", "Exception"))] * 3, "fail"),
        (ONE_SIDED, [ERROR, RIGHT, RIGHT], "pass"),
        (ONE_SIDED, [RIGHT] * 3, "fail"),
    ],
)
def test_outcomes(case: Case, reports: list[Report], expected: str) -> None:
    assert outcome(case, reports) == expected


def test_ranks_outside_of_the_group_need_no_error() -> None:
    error = Report("error", "RuntimeError: no", ("RuntimeError",))
    case = replace(SUB, given={**SUB.given, "dtype": "int16"})
    assert outcome(case, [RIGHT, error, error], known=False) == "refuse"


@pytest.mark.parametrize(
    "name",
    ["all_reduce/int16/sum/sync@3", "all_reduce/float32/max/sync@3",
     "broadcast/float32/sync/strided@3", "recv/from-any-source/full@3"],
)  # fmt: skip
def test_without_a_profile_the_unusual_may_be_refused(name: str) -> None:
    assert outcome(BY_ID[name], [ERROR] * 3, known=False) == "refuse"
    assert outcome(BY_ID[name], [ERROR, RIGHT, ERROR], known=False) == "fail"


@pytest.mark.parametrize(
    "name",
    ["all_reduce/float32/sum/sync@3", "broadcast/float32/async@3", "barrier/in/sync/full@3",
     "all_reduce/float32/sum/sync/view@3", "Work/wait-twice/all_reduce@3"],
)  # fmt: skip
def test_without_a_profile_the_basic_must_work(name: str) -> None:
    assert outcome(BY_ID[name], [ERROR] * 3, known=False) == "fail"


def test_a_backend_that_raises_on_everything_fails_in_every_family() -> None:
    refused = {
        case.id
        for case in BY_ID.values()
        if outcome(case, [ERROR] * 3, known=False) == "refuse"
    }
    assert {case.operation for case in BY_ID.values() if case.program == "collective"} == {
        case.operation
        for case in BY_ID.values()
        if case.program == "collective" and case.id not in refused
    }
    plain = {BY_ID[name].family for name in refused if not BY_ID[name].needs}
    assert plain <= {"collectives", "functional"}


def test_what_a_backend_has_not_is_refused_by_the_rank_that_asks() -> None:
    case = BY_ID["recv/from-any-source/full@3"]
    rule = known_refusal(case, "nccl", "cuda")
    assert rule is not None and rule.name == "any-source"
    assert judge(case, [ERROR, RIGHT, RIGHT], rule, known=True).outcome == "refuse"
    assert known_refusal(case, "gloo", "cpu") is None
    barrier = BY_ID["monitored_barrier/in/full/True@3"]
    assert known_refusal(barrier, "nccl", "cuda") is not None
    assert known_refusal(barrier, "gloo", "cpu") is None


def test_cases_that_say_nothing_about_a_backend_are_left_out() -> None:
    assert applies(BY_ID["isend/tags/reverse@3"], "gloo")
    assert not applies(BY_ID["isend/tags/reverse@3"], "nccl")
    assert not applies(BY_ID["init_process_group/backend/gloo@3"], "nccl")
    assert applies(PLAIN, "a backend of one's own")


def test_the_reason_names_the_ranks() -> None:
    result = judge(PLAIN, [RIGHT, WRONG, WRONG], None, known=True)
    assert result.reason == "ranks 1,2: result: [1] instead of [2]"


def test_a_gap_in_memory_is_known_to_corrupt_on_gloo() -> None:
    rule = known_refusal(BY_ID["all_reduce/float32/sum/sync/strided@3"], "gloo", "cpu")
    assert rule is not None and rule.effect == "corrupts"
