"""What ranks on threads see of a fault is what was measured on real Gloo processes: each row of
the tables of docs/faults.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.faults import fault_tables, gloo_ranks
from benchmarks.faults.fault_cases import cases
from benchmarks.faults.fault_tables import BY_CHANCE, EVIDENCE, NOT_ON_THREADS, words_of

CASES: dict[str, Any] = json.loads(EVIDENCE.read_text(encoding="utf-8"))["cases"]
CERTAIN = [
    name
    for name in CASES
    if not any(name.startswith(start) for start in (*BY_CHANCE, *NOT_ON_THREADS))
]
ON_GLOO = (
    "killed while: all_reduce",
    "killed while: gather (to 0)",
    "killed before: barrier",
    "killed before: send to the victim",
    "killed: new_group",
    "store killed while: wait",
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::phalanx.PhalanxWarning", "ignore::FutureWarning"
)


def classes_of(notes: Any) -> dict[int, list[str | None]]:
    return {int(rank): [note.get("raised") for note in each] for rank, each in notes.items()}


@pytest.mark.parametrize("name", CERTAIN)
def test_a_fault_is_seen_as_on_gloo(name: str) -> None:
    assert words_of(fault_tables.on_threads(name)) == words_of(CASES[name])


@pytest.mark.parametrize("name", [name for name in CERTAIN if "monitored" not in name])
def test_errors_have_the_class_of_gloos(name: str) -> None:
    ours, measured = classes_of(fault_tables.on_threads(name)), classes_of(CASES[name])
    assert {rank: ours[rank] for rank, seen in measured.items() if seen} == {
        rank: seen for rank, seen in measured.items() if seen
    }


@pytest.mark.parametrize("name", ["killed before: gather (to 0)", "stopped for long: barrier"])
def test_what_chance_decides_is_something_that_gloo_may_show(name: str) -> None:
    words = {word for seen in words_of(fault_tables.on_threads(name)).values() for word in seen}
    assert words <= {"ok", "closed", "timed out", "own closure"}
    assert "closed" in words


@pytest.mark.slow
@pytest.mark.programs
@pytest.mark.parametrize("name", ON_GLOO)
def test_real_processes_still_show_the_same(name: str) -> None:
    body, serves = cases()[name]
    measured = gloo_ranks.run_until_met(name, body, serves)
    assert words_of(fault_tables.on_threads(name)) == words_of(measured)
