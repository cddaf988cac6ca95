"""Markers of ranks on parameters: `pytest.param(2, marks=pytest.mark.world_size(2))`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.pytest_runs import run_many, run_pytest

HEAD = """
import pytest
import torch
import torch.distributed as dist

ranks = pytest.mark.ranks

def param(value, *marks):
    return pytest.param(value, marks=marks)

def size():
    return dist.get_world_size() if dist.is_initialized() else None

"""
GOOD = """
@pytest.mark.parametrize("world_size", [1, param(2, pytest.mark.world_size(2))])
def test_only_there(world_size):
    assert size() == {1: None, 2: 2}[world_size]

@pytest.fixture(params=[1, param(2, pytest.mark.world_size(2))])
def wanted(request):
    return request.param

def test_by_a_fixture(wanted):
    assert size() == {1: None, 2: 2}[wanted]

@ranks(2, 4, init=False)
@pytest.mark.parametrize("many", ["2+4", param("8", ranks(8)), param("3+5", ranks(3, 5))])
@pytest.mark.parametrize("other", ["x", "y"])
def test_stronger(many, other, world_size):
    assert str(world_size) in many.split("+")
    assert size() is None

class TestRest:
    pytestmark = ranks(engine="threads")

    @pytest.mark.parametrize("many", [param(2, ranks(2)), param(3, ranks(3, seed=7))])
    def test_it(self, many, world):
        assert (world.size, world.seed) == (many, {2: 0, 3: 7}[many])

@ranks(2)
@pytest.mark.parametrize(
    "hangs", [param(True, pytest.mark.ranks_expect("deadlock", reason="the point")), False]
)
def test_expected(hangs, rank):
    if hangs:
        dist.recv(torch.ones(1), 1 - rank)

@pytest.mark.parametrize(
    "skips", [param(True, ranks(2), pytest.mark.skip("no")), param(False, ranks(2))]
)
def test_beside_others(skips):
    assert size() == 2 and not skips

@pytest.mark.parametrize("a", [1, param(2, ranks([2])), param(4, ranks([2, 4], seed=1))])
@pytest.mark.parametrize("b", [1, param(4, pytest.mark.world_size(4)), param(2, ranks(2))])
def test_two_lists(a, b):
    assert size() in (None, 2, 4)

@pytest.fixture(params=[param("ring", pytest.mark.ranks_silence("leak", reason="so")), "tree"])
def shape(request):
    return request.param

def test_shared_by_an_ordinary_test(shape):
    assert size() is None

@ranks(2, device="cuda")
@pytest.mark.parametrize("kind", ["cuda", param("cpu", ranks(device="cpu"))])
def test_devices(kind, device):
    assert device.type == kind
"""
CONFLICTS = {
    "test_two_lists[ranks=?-4-2]": "world_size(4) and ranks([2])",
    "test_two_lists[ranks=?-4-4]": "world_size(4) and ranks([2, 4], seed=1)",
    "test_two_lists[ranks=?-2-4]": "ranks(2) and ranks([2, 4], seed=1)",
}
OUTCOMES = {
    "test_only_there[1]": "PASSED",
    "test_only_there[ranks=2-2]": "PASSED",
    "test_by_a_fixture[1]": "PASSED",
    "test_by_a_fixture[ranks=2-2]": "PASSED",
    **{f"test_stronger[ranks={n}-{o}-2+4]": "PASSED" for n in (2, 4) for o in "xy"},
    **{f"test_stronger[ranks=8-{o}-8]": "PASSED" for o in "xy"},
    **{f"test_stronger[ranks={n}-{o}-3+5]": "PASSED" for n in (3, 5) for o in "xy"},
    "TestRest::test_it[ranks=2-2]": "PASSED",
    "TestRest::test_it[ranks=3-3]": "PASSED",
    "test_expected[ranks=2-True]": "PASSED",
    "test_expected[ranks=2-False]": "PASSED",
    "test_beside_others[ranks=2-False]": "PASSED",
    "test_devices[ranks=2-cpu]": "PASSED",
    "test_shared_by_an_ordinary_test[ring]": "PASSED",
    "test_shared_by_an_ordinary_test[tree]": "PASSED",
    "test_two_lists[1-1]": "PASSED",
    "test_two_lists[ranks=4-4-1]": "PASSED",
    "test_two_lists[ranks=2-2-1]": "PASSED",
    "test_two_lists[ranks=2-1-2]": "PASSED",
    "test_two_lists[ranks=2-2-2]": "PASSED",
    "test_two_lists[ranks=2-1-4]": "PASSED",
    "test_two_lists[ranks=4-1-4]": "PASSED",
    **dict.fromkeys(CONFLICTS, "ERROR"),
}
BAD = {
    "without_a_size": (
        "@ranks(engine='threads')\n@pytest.mark.parametrize('a', [param(2, ranks(2)), 3])",
        "ranks() says no number of ranks",
    ),
    "wrong": (
        "@pytest.mark.parametrize('a', [param(1, ranks(2, enigne='threads'))])",
        "ranks(enigne=...): unknown keyword",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list:
    files = {"test_good.py": HEAD + GOOD}
    for name, (marks, _) in BAD.items():
        files[f"test_{name}.py"] = f"{HEAD}{marks}\ndef test_{name}(a):\n    pass\n"
    here = ["-rA", "test_good.py"]
    three = [*here, "--ranks", "3", "-k", "beside or only_there or two_lists"]
    processes = [*here, "--ranks-engine", "processes", "-k", "fixture and ranks2"]
    bad = ["--continue-on-collection-errors", *(f"test_{name}.py" for name in BAD)]
    folder = tmp_path_factory.mktemp("parameters")
    return run_many(folder, [here, three, processes, bad], files=files)


def test_markers_of_parameters_choose(runs: list) -> None:
    ran = runs[0]
    told = {name: how for name, how in ran.outcomes.items() if how != "SKIPPED"}
    told.pop("test_devices[ranks=2-cuda]", None)  # where there is a GPU
    assert told == OUTCOMES
    assert ": no\n" in ran.text
    for disagreeing in CONFLICTS.values():
        assert f"markers on its parameters disagree: {disagreeing}; leave one" in ran.text


def test_options_are_stronger(runs: list) -> None:
    told = {name: how for name, how in runs[1].outcomes.items() if how != "SKIPPED"}
    lists = {name: told.pop(name) for name in [*told] if "two_lists" in name}
    assert len(lists) == 9 and not any("?" in name for name in lists)
    assert told == {
        "test_only_there[1]": "PASSED",
        "test_only_there[ranks=3-2]": "FAILED",  # it says 2
        "test_beside_others[ranks=3-False]": "FAILED",
    }
    assert runs[2].outcomes == {"test_by_a_fixture[ranks=2-2]": "PASSED"}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told(runs: list, name: str) -> None:
    assert runs[3].code != 0
    assert BAD[name][1] in runs[3].text


@pytest.mark.parametrize(
    ("size", "told"), [("2", True), pytest.param("1", False, marks=pytest.mark.slow)]
)
def test_pytest_that_torchrun_has_started_says_so(
    tmp_path: Path, size: str, told: bool
) -> None:
    marked = HEAD + "@pytest.mark.world_size(2)\ndef test_it():\n    assert size() == 2\n"
    env = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": size, "RANK": "0"}
    ran = run_pytest(tmp_path, files={"test_it.py": marked}, env=env)
    assert "1 passed" in ran.text
    assert (f"torchrun has started pytest {size} times" in ran.text) == told
