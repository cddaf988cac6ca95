"""The runner on the threads engine, on real Gloo, and on a backend of a third party."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from phalanx.conformance import case_body, runner
from phalanx.conformance.case_context import Context
from phalanx.conformance.case_model import Case, Result, Setting, Table
from phalanx.conformance.family import Family
from phalanx.conformance.known_differences import find_differences
from phalanx.conformance.suite import PROGRAMS, all_cases, select

HERE = Path(__file__).parent
GLOO = Setting(engine="processes")
SUBSET = (
    "*/float32/*strided*,*/float32/*/view@*,*/int16/*,*/bool/*,*/overlapping@*,broadcast/*root*,"
    "ordering/*,Work/*,objects,Store/queues*,Store/shared*,groups,DeviceMesh,functional,"
    "*/mistake/*,barrier,init_process_group"
)


def run(cases: list[Case], setting: Setting | None = None) -> Table:
    return runner.run_suite(cases, setting or Setting(), lambda result: None)


def troubles(table: Table) -> list[str]:
    return [f"{r.outcome} {r.id}: {r.reason}" for r in table.results
            if r.outcome in ("fail", "WRONG")]  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.parametrize("sizes", [[3], pytest.param([2, 4], marks=pytest.mark.slow)], ids=str)
def test_the_whole_suite_on_threads(sizes: list[int]) -> None:
    cases = all_cases(sizes)
    table = run(cases)
    assert [result.id for result in table.results] == [case.id for case in cases]
    assert troubles(table) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_threads_and_gloo_agree_on_a_subset() -> None:
    """A few of each; the whole is slow."""
    cases = [c for c in select(all_cases([3]), SUBSET) if not c.alone]
    ours, real = run(cases), run(cases, GLOO)
    unexplained = [each for each in find_differences(real, ours) if not each.reason]
    assert unexplained == []
    assert len(cases) > 300


def test_gloo_is_told_when_it_is_wrong() -> None:
    name = "all_reduce/float32/sum/sync/strided@2"
    (found,) = run(select(all_cases([2]), name), GLOO).results
    assert (found.outcome, found.reason) == ("WRONG", "ranks 0,1: wrote outside of the tensor")
    (ours,) = run(select(all_cases([2]), name)).results
    assert ours.outcome == "refuse"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_threads_and_gloo_agree() -> None:
    cases = all_cases([2, 3, 4])
    unexplained = [
        each for each in find_differences(run(cases, GLOO), run(cases)) if not each.reason
    ]
    assert unexplained == []


@pytest.mark.timeout(120)
def test_a_broken_backend_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that delegates to Gloo, forgets an element in all_reduce and takes no float16."""
    monkeypatch.syspath_prepend(str(HERE))
    setting = Setting(engine="processes", backend="broken", imports=("broken_backend",))
    wanted = (
        "all_reduce/float32/sum/sync@2",
        "all_gather/float32/sync@2",
        "all_gather/float16/sync@2",
        "broadcast/float32/async@2",
    )
    try:
        table = run(select(all_cases([2]), ",".join(wanted)), setting)
    finally:
        sys.modules.pop("broken_backend", None)
    found = {r.id: r.outcome for r in table.results}
    assert found == dict(zip(wanted, ("WRONG", "pass", "refuse", "pass"), strict=True))


def test_one_broken_case_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one chunk: an error on one rank only, a rank that ends, wrong data, and good ones."""
    family = Family("made-up")

    @family.case("made-up", "good", over={"number": range(5)})
    def good(me: Context, number: int) -> None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        me.equal(tensor, torch.full((1,), float(me.size)), "sum")

    @family.case("made-up", "uneven")
    def uneven(me: Context) -> None:
        if me.rank == 0:
            raise ValueError("only here")
        dist.all_reduce(torch.ones(1))

    @family.case("made-up", "exits")
    def exits(me: Context) -> None:
        if me.rank == 1:
            raise SystemExit(3)
        dist.barrier()

    @family.case("made-up", "wrong")
    def wrong(me: Context) -> None:
        me.equal(torch.ones(1), torch.zeros(1), "data")

    @family.case("made-up", "everywhere")
    def everywhere(me: Context) -> None:
        raise KeyError("on all ranks")

    for name, program in family.programs.items():
        monkeypatch.setitem(PROGRAMS, name, program)
    cases = [*family.cases(3)]
    order = [cases[i] for i in (0, 5, 1, 6, 2, 7, 3, 8, 4)]
    found = {r.id: r for r in run(order).results}
    outcomes = {name.partition("/")[2]: r.outcome for name, r in found.items()}
    assert outcomes == {
        **{f"good/{number}@3": "pass" for number in range(5)},
        "uneven@3": "fail",
        "exits@3": "fail",
        "wrong@3": "WRONG",
        "everywhere@3": "fail",
    }
    assert "rank 0: ValueError: only here" in found["made-up/uneven@3"].reason
    assert case_body._contexts == {}, "what broken worlds kept is still there"
    assert "ranks 0,1,2: KeyError" in found["made-up/everywhere@3"].reason


def test_progress_is_reported_case_by_case() -> None:
    cases = select(all_cases([2]), "barrier")
    seen: list[Result] = []
    runner.run_suite(cases, Setting(), seen.append)
    assert {r.id for r in seen} == {case.id for case in cases}


def test_warnings_and_scratch_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(select(all_cases([2]), "Store/set-and-get"))
    assert list(tmp_path.iterdir()) == []
    with pytest.warns(UserWarning, match="still heard"):
        warnings.warn("still heard", UserWarning, stacklevel=1)
