"""The marker, the options and the ini settings of the pytest plugin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.errors import UsageError
from phalanx.testing.collection.marker import Given, Ranks, find_plan
from tests.testing.pytest_runs import Ran, run_many, run_pytest

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest, with many processes

# -- decisions, without pytest running ------------------------------------------------------


def plan(*marks: Any, **given: Any) -> dict[str, Ranks]:
    found = find_plan([each.mark for each in marks], Given(**given))
    assert found is not None
    return dict(zip(found.ids, found.ways, strict=True))


def test_sizes_and_ids() -> None:
    assert list(plan(pytest.mark.ranks(4))) == ["ranks=4"]
    assert list(plan(pytest.mark.ranks(2, 4, 8))) == ["ranks=2", "ranks=4", "ranks=8"]
    assert list(plan(pytest.mark.ranks([2, 3]))) == ["ranks=2", "ranks=3"]
    assert list(plan(pytest.mark.world_size(2))) == ["ranks=2"]


def test_engines_are_in_the_id_if_there_are_several() -> None:
    assert list(plan(pytest.mark.ranks(2, engine="processes"))) == ["ranks=2"]
    both = ["ranks=2-threads", "ranks=2-processes"]
    assert list(plan(pytest.mark.ranks(2, engine="threads,processes"))) == both
    assert list(plan(pytest.mark.ranks(2), engines=("threads", "processes"))) == both


def test_the_closest_marker_wins_in_each_setting() -> None:
    found = plan(pytest.mark.ranks(seed=7), pytest.mark.ranks(4, seed=1, backend="nccl"))
    assert found == {"ranks=4": Ranks(ranks=4, seed=7, backend="nccl")}
    assert list(plan(pytest.mark.world_size(2), pytest.mark.ranks(8))) == ["ranks=2"]


def test_options_win_over_markers_and_markers_over_the_ini_file() -> None:
    mark = pytest.mark.ranks(4, timeout=5)
    assert plan(mark, sizes=(2,), options={"timeout": 9.0}) == {
        "ranks=2": Ranks(ranks=2, limit=9.0)
    }
    assert plan(mark, default_sizes=(2,), defaults={"timeout": 9.0, "seed": 3}) == {
        "ranks=4": Ranks(ranks=4, limit=5.0, seed=3)
    }
    assert plan(pytest.mark.ranks(), default_sizes=(2,)) == {"ranks=2": Ranks(ranks=2)}


def test_a_seed_is_for_threads() -> None:
    found = plan(pytest.mark.ranks(2, seed=7), engines=("threads", "processes"))
    assert [way.seed for way in found.values()] == [7, 0]
    with pytest.raises(UsageError, match="engine='processes' has no seed"):
        plan(pytest.mark.ranks(2, seed=7, engine="processes"))  # asks for both itself


def test_no_limit() -> None:
    assert plan(pytest.mark.ranks(2, timeout=0))["ranks=2"].limit is None
    assert plan(pytest.mark.ranks(2))["ranks=2"].limit == 300.0


def test_other_markers_make_no_ranks_test() -> None:
    assert find_plan([pytest.mark.slow.mark], Given(sizes=(4,))) is None


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (pytest.mark.ranks(0), "ranks(0): give numbers of ranks, whole numbers from 1"),
        (pytest.mark.ranks("4"), "ranks('4'): give numbers of ranks"),
        (pytest.mark.ranks(True), "ranks(True): give numbers of ranks"),
        (pytest.mark.ranks(2, 2), "a number of ranks is there twice"),
        (pytest.mark.ranks(), "ranks() says no number of ranks; write @pytest.mark.ranks(4)"),
        (pytest.mark.world_size(), "world_size() says no number"),
        (pytest.mark.ranks(2, engin="x"), "ranks(engin=...): unknown keyword; allowed: engine"),
        (pytest.mark.world_size(2, seed=1), "unknown keyword; allowed: none"),
        (pytest.mark.ranks(2, engine="gpu"), "engine='gpu': choose threads or processes"),
        (pytest.mark.ranks(2, engine=5), "engine=5: choose threads or processes"),
        (pytest.mark.ranks(2, timeout="5"), "timeout='5': give seconds"),
        (pytest.mark.ranks(2, strict="yes"), "strict='yes': True or False"),
        (pytest.mark.ranks(2, per_rank=3), "per_rank=3: give names of fixtures"),
    ],
)
def test_wrong_markers(mark: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(mark)
    assert text in str(caught.value)


# -- pytest itself --------------------------------------------------------------------------

CHOSEN = """
import pytest

@pytest.mark.ranks(2, 4)
def test_two_sizes(world_size, world, request):
    assert f"ranks={world_size}" in request.node.name
    print("seed", world.seed, world.engine)

@pytest.mark.ranks(2)
class TestClass:
    def test_of_class(self, world_size):
        assert world_size in (2, 3)

    @pytest.mark.ranks(3)
    def test_own(self, world_size):
        assert world_size == 3

@pytest.mark.world_size(2)
def test_world_size(world_size):
    assert world_size in (2, 3)

def test_plain():
    pass
"""
ALL = [
    "test_two_sizes[ranks=2]",
    "test_two_sizes[ranks=4]",
    "TestClass::test_of_class[ranks=2]",
    "TestClass::test_own[ranks=3]",
    "test_world_size[ranks=2]",
    "test_plain",
]


WRONG = {
    "--ranks=x": "--ranks x: whole numbers are needed, e.g. 2,4",
    "--ranks=0": "--ranks 0: give numbers of ranks, whole numbers from 1",
    "--ranks-engine=gpu": "--ranks-engine gpu: choose threads or processes",
    "--ranks-report=some": "--ranks-report some: choose all, first, concise",
    "--ranks-seed=a": "--ranks-seed a: whole numbers are needed, e.g. 7",
    "--ranks-timeout=a": "--ranks-timeout a: seconds are needed, e.g. 30",
    "--ranks-backend=foo": "test_chosen.py::test_two_sizes: backend='foo': choose one of",
    "--ranks=5000": "test_chosen.py::test_two_sizes: ranks=5000: give the number of ranks",
}
CHOICES = [
    ["-rA"],
    ["-rA", "--ranks", "3"],
    ["-q", "--collect-only", "--ranks-engine", "threads,processes", "-k", "processes"],
    ["-rA", "-k", "ranks4", "--ranks-seed", "5"],
    ["-q", "--collect-only", "-k", "threads and ranks3"],
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Ran]:
    folder = tmp_path_factory.mktemp("chosen")
    arguments = [*CHOICES, *([option] for option in WRONG)]
    return run_many(folder, arguments, files={"test_chosen.py": CHOSEN})


def test_choosing(runs: list[Ran]) -> None:
    plain, overridden, by_engine, by_size, by_both = runs[: len(CHOICES)]
    assert plain.outcomes == dict.fromkeys(
        sorted(ALL, key=list(plain.outcomes).index), "PASSED"
    )
    names = {name.replace("=2]", "=3]") for name in ALL if "=4" not in name}
    assert overridden.outcomes == dict.fromkeys(names, "PASSED")
    assert "5/11 tests collected" in by_engine.text
    assert by_engine.text.count("-processes]") == 5
    assert list(by_size.outcomes) == ["test_two_sizes[ranks=4]"]
    assert "seed 5 threads" in by_size.text
    assert "TestClass::test_own[ranks=3]" in by_both.text
    assert "1/6 tests collected" in by_both.text


def test_wrong_options(runs: list[Ran]) -> None:
    for ran, text in zip(runs[len(CHOICES) :], WRONG.values(), strict=True):
        assert text in ran.text
        assert ran.code in (2, 4)
        assert "Traceback" not in ran.text
        assert "During handling" not in ran.text


INI = """
[pytest]
ranks = 3
ranks_engine = threads
ranks_seed = 4
ranks_report = concise
ranks_strict = true
ranks_timeout = 2.5
ranks_shared = given
addopts = --strict-markers --strict-config
"""
BY_INI = """
import pytest
import torch
import torch.distributed as dist

@pytest.fixture
def given():
    return object()

@pytest.mark.ranks
def test_defaults(world, given):
    assert (world.size, world.seed, world.engine) == (3, 4, "threads")
    assert id(given) == world.gather(id(given))[0]

@pytest.mark.ranks()
def test_leaves_a_message(rank):
    if rank == 0:
        dist.isend(torch.ones(2), 1)

@pytest.mark.ranks(2)
def test_takes_long(rank):
    while rank == 1:
        pass

@pytest.mark.ranks(2, strict=False)
def test_not_strict(rank):
    if rank == 0:
        dist.isend(torch.ones(2), 1)
"""


@pytest.mark.slow
def test_ini_file(tmp_path: Path) -> None:
    files = {"pytest.ini": INI, "test_by_ini.py": BY_INI}
    ran = run_pytest(tmp_path, "-rA", files=files)
    assert ran.outcomes["test_defaults[ranks=3]"] == "PASSED"
    assert ran.reasons["test_leaves_a_message[ranks=3]"].startswith("HazardError: [unmatched")
    assert ran.reasons["test_takes_long[ranks=2]"].startswith(
        "StallError: over the limit of 2.5 s"
    )
    assert ran.outcomes["test_not_strict[ranks=2]"] == "PASSED"
    told = r"PhalanxWarning: \[unmatched-message\]: send\(dst=1, tag=0\) of rank 0"
    assert re.search(rf"test_by_ini.py:\d+: {told}", ran.text)


def test_the_plugin_costs_little_where_it_is_not_used(tmp_path: Path) -> None:
    check = "def test_x():\n    import sys\n    assert 'torch' not in sys.modules\n"
    ran = run_pytest(tmp_path, files={"test_light.py": check}, fresh=True)
    assert "1 passed" in ran.text
    markers, options = run_many(tmp_path, [["--markers"], ["--help"]], files={})
    assert "@pytest.mark.ranks(*sizes, engine=None" in markers.text
    assert "--ranks-report=HOW" in options.text
    assert re.search(r"ranks \(string\): +where the marker does not say", options.text)


def test_private_names_of_pytest_are_in_modules_named_for_it() -> None:
    package = Path(phalanx.__file__).parent
    users = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^\s*(from|import) _pytest", path.read_text(encoding="utf-8"), re.M)
    }
    assert users == {
        f"testing/pytest_compat/pytest_private{part}.py" for part in ("", "_calls", "_logs")
    }
