"""The cases as data: enough of them, ids that are stable and readable, selection."""

from __future__ import annotations

import pickle

import pytest

from phalanx.conformance.case_model import Case
from phalanx.conformance.suite import FAMILIES, PROGRAMS, all_cases, select

CASES = all_cases([2, 3, 4])
IDS = [case.id for case in CASES]


def test_there_are_thousands() -> None:
    assert len(CASES) >= 2000


def test_ids_differ_and_can_be_selected_by() -> None:
    assert len(set(IDS)) == len(IDS)
    assert not [name for name in IDS if set(name) & set(" ,*?[")]


def test_every_case_has_a_program() -> None:
    assert {case.program for case in CASES} == set(PROGRAMS)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_family_has_cases(family: object) -> None:
    assert any(family.cases(3))  # type: ignore[attr-defined]


def test_cases_travel_to_processes() -> None:
    assert pickle.loads(pickle.dumps(CASES)) == CASES


@pytest.mark.parametrize(
    "name",
    [
        "all_reduce/float32/sum/async/sub@3",
        "broadcast/float32/sync/root1-group@2",
        "all_to_all_single_uneven/bfloat16/async@4",
        "reduce_scatter/float32/sum/sync/strided@3",
        "send/mistake/to-oneself@2",
        "Store/queues/TCPStore@4",
        "monitored_barrier/several-are-missing@4",
    ],
)
def test_ids_are_stable(name: str) -> None:
    assert name in IDS


@pytest.mark.parametrize(
    "word",
    ["float8_e5m2", "complex128", "bool", "/avg/", "/premul_sum/", "overlapping", "/none@",
     "single", "empty@", "zero-dim", "channels-last", "expanded", "large", "requires-grad",
     "view@", "transposed", "does-not-pickle", "coalescing", "nn.functional", "DeviceMesh"],
)  # fmt: skip
def test_what_must_be_covered_is(word: str) -> None:
    assert any(word in name for name in IDS)


def test_select_by_part_and_by_glob() -> None:
    def ids(expression: str) -> list[str]:
        return [case.id for case in select(CASES, expression)]

    assert ids("all_reduce/int64/sum/sync@3") == ["all_reduce/int64/sum/sync@3"]
    assert set(ids("all_reduce/*/sum/sync@3")) == {
        name for name in IDS if name.startswith("all_reduce/") and name.endswith("/sum/sync@3")
    }
    assert "coalescing_all_reduce/int64/sum/sync@3" in ids("all_reduce/int64/sum/sync")
    assert set(ids("barrier/, Work/")) == {
        name for name in IDS if "barrier/" in name or "Work/" in name
    }
    assert ids("no such thing") == []


def test_a_single_rank_has_cases_too() -> None:
    assert all(case.ranks == 1 for case in all_cases([1]))
    assert len(all_cases([1])) > 300


def test_an_id_says_what_is_out_of_the_ordinary() -> None:
    case = Case("f", "op", ("float32", "sync"), 3, "program")
    assert case.id == "op/float32/sync@3"
