"""`@pytest.mark.ranks(4, explore=200)` and its options, as users of real pytest meet them."""

from __future__ import annotations

import gzip
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.explore.explore_options import ExploreOptions
from phalanx.testing.collection.explore_value import parse_explore, read_explore
from phalanx.testing.collection.marker import Given, find_plan
from tests.testing.pytest_runs import Ran, run_many, run_pytest

ONE = "test_explored.py::test_lost_update[ranks=2]"
TOKEN = "2-2.1-41a7"
"""Of the run in which rank 1 reads before rank 0 writes, and else nothing is unusual."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Ran]:
    folder = tmp_path_factory.mktemp("explored")
    replay = [ONE, "--ranks-replay", TOKEN, "--ranks-record", "recorded"]
    first = ["-k", "lost or hangs or two_ways", "--ranks-report", "first"]
    return run_many(
        folder,
        [
            ["-rA", "--junitxml", "all.xml"],
            ["-rA", *replay],
            ["-rA", "test_explored.py::test_prints[ranks=2]", "--ranks-replay", "2-0.1-1f4f"],
            ["-rA", ONE, "--ranks-replay", "2-2.1-0000"],
            ["-rA", "-s", "-k", "test_prints or test_may", "--ranks-explore", "off"],
            ["-q", *first],
            ["-q", "-k", "test_prints or two_ways", "--ranks-report", "concise"],
            ["-q", "-k", "test_may_print", "--ranks-explore", "7, strategy=pct"],
            ["-q", "-k", "test_how_often", "--ranks-explore", "7"],
        ],
        samples=("explored",),
    )


def test_outcomes(runs: list[Ran]) -> None:
    assert runs[0].outcomes == {
        "test_lost_update[ranks=2]": "FAILED",
        "test_leader_hangs[ranks=3]": "FAILED",
        "test_prints[ranks=2]": "FAILED",
        "test_may_print[ranks=2]": "PASSED",
        "test_right[ranks=2]": "PASSED",
        "test_two_ways_to_fail[ranks=2]": "FAILED",
        "TestFixtures::test_each_schedule_has_its_own[ranks=2]": "PASSED",
        "TestFixtures::test_how_often": "PASSED",
        "TestFixtures::test_what_is_shared_is_told[ranks=2]": "PASSED",
        "test_explored.py:105": "SKIPPED",
        "TestOutcomes::test_known[ranks=2]": "XFAIL",
        "TestOutcomes::test_known_and_more[ranks=2]": "FAILED",
        "TestOutcomes::test_xfail_in_a_rank[ranks=2]": "XFAIL",
        "TestOutcomes::test_subtests[ranks=2]": "FAILED",
        "TestOutcomes::test_properties[ranks=2]": "PASSED",
        "TestOutcomes::test_in_the_teardown[ranks=2]": "FAILED",
        "TestOutcomes::test_warns[ranks=2]": "PASSED",
        "TestFindings::test_warning[ranks=2]": "PASSED",
        "TestFindings::test_strict[ranks=2]": "FAILED",
        "TestFindings::test_expected[ranks=2]": "PASSED",
        "TestFindings::test_silenced[ranks=2]": "PASSED",
        "TestFindings::test_deadlock_in_some[ranks=3]": "PASSED",
        "TestFindings::test_no_deadlock[ranks=2]": "FAILED",
        "TestFindings::test_another_result[ranks=2]": "PASSED",
        "TestFindings::test_invariant[ranks=2]": "FAILED",
    }


def test_an_assertion_is_shown_as_pytest_does_with_its_story_and_replay(
    runs: list[Ran],
) -> None:
    shown = runs[0].section("test_lost_update[ranks=2]")
    assert shown.startswith("both ranks (with the values of rank 0):\n")
    assert (
        "E       assert 1 == 2\n\ntest_explored.py:32: AssertionError\n\n  1. rank 1" in shown
    )
    assert '(store.get of "n") before rank 0 reaches' in shown
    assert re.search(r"  explored  it fails like this in \d+ of 40 schedules; ", shown)
    assert f'\n  replay    pytest "{ONE}" --ranks-replay {TOKEN}\n' in shown
    assert re.search(r"\n  timeline  phalanx report \S+test_lost_update-ranks-2\n", shown)
    assert "Captured stdout call, ranks 0, 1" in shown, "that of the run that is told"
    reason = runs[0].reasons["test_lost_update[ranks=2]"]
    assert reason.startswith("both ranks: assert 1 == 2 (in ")


def test_a_verdict_is_shown_with_its_story_and_what_was_explored(runs: list[Ran]) -> None:
    shown = runs[0].section("test_leader_hangs[ranks=3]")
    assert shown.startswith("DeadlockError: ranks 0 and 2 wait for each other; no rank can")
    assert "\n\n  1. rank 2 reaches test_explored.py:19 (store.add" in shown
    assert (
        "  explored  all 6 behaviours of test_leader_hangs on 3 ranks with this input "
        "explored:\n            2 end in a deadlock\n"
    ) in shown
    assert shown.count("  replay  ") == 1


def test_all_ways_to_fail_are_shown_or_the_first(runs: list[Ran]) -> None:
    shown = runs[0].section("test_two_ways_to_fail[ranks=2]")
    both = "AssertionError\n", "in other orders it fails in another way:\n", "ValueError\n"
    places = [shown.index(each) for each in both]
    assert places == sorted(places)
    assert shown.count("--ranks-replay 2-") == 2
    first = runs[5].section("test_two_ways_to_fail[ranks=2]")
    assert "1 other failure; --ranks-report all shows how it fails" in first
    concise = runs[6].section("test_two_ways_to_fail[ranks=2]")
    assert "rank 1: test_explored.py:60: assert (1, 1) != (1, 1)\n  replay  " in concise


def test_what_is_shared_by_all_schedules_is_named(runs: list[Ran]) -> None:
    told = 'hint      the fixture "in_all" is another one after the run'
    assert told in runs[0].text


def test_marks_of_findings(runs: list[Ran]) -> None:
    text = runs[0].text
    assert text.count("PhalanxWarning: [unmatched-message]") == 1
    strict = runs[0].section("TestFindings.test_strict[ranks=2]")
    assert strict.startswith("HazardError: send(dst=0, tag=0) of rank 1 was never received")
    nothing = runs[0].section("TestFindings.test_no_deadlock[ranks=2]")
    assert "the checks found nothing in any of its 2 behaviours" in nothing
    hung = runs[0].section("TestFindings.test_deadlock_in_some[ranks=3]")
    assert "expected: it is the point" in hung


def test_the_end_of_pytest_sums_up(runs: list[Ran]) -> None:
    summary = re.search(
        r"^phalanx explored (\d+) schedules of 24 tests: (\d+) behaviours, all that there are "
        r"of 5 tests; \d+ failures in \d+ tests$",
        runs[0].text,
        re.MULTILINE,
    )
    assert summary is not None, runs[0].text[-3000:]
    assert "phalanx explored 7 schedules of 1 test: 2 behaviours; none fails" in runs[7].text
    assert "phalanx explored" not in runs[8].text, "a test that is not on ranks"


def test_a_token_repeats_the_run(runs: list[Ran]) -> None:
    shown = runs[1].section("test_lost_update[ranks=2]")
    assert "E       assert 1 == 2\n" in shown
    assert f"  explored  the run of {TOKEN} again, exactly\n" in shown
    assert f"--ranks-replay {TOKEN}\n" in shown
    assert f"phalanx repeated the run of {TOKEN}\n" in runs[1].text
    assert "  timeline  phalanx report recorded/test_explored.py--test_lost_update" in shown


def test_a_token_of_another_result_fails_again(runs: list[Ran]) -> None:
    shown = runs[2].section("test_prints[ranks=2]")
    assert shown.startswith("DifferentResultsError: rank 0 printed, in line 1, 'place 1' in")


def test_a_token_of_what_has_changed_is_told(runs: list[Ran]) -> None:
    assert "PhalanxWarning: this run does not choose as the token says" in runs[3].text
    assert "not exactly: the test has changed since\n" in runs[3].text


def test_an_option_turns_it_off(runs: list[Ran]) -> None:
    assert set(runs[4].outcomes.values()) == {"PASSED"}
    assert runs[4].text.count("place 1") == 2, "each test runs once, and shows what it prints"


def test_junit_has_the_figures_and_one_failure(runs: list[Ran], tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    folder = next(tmp_path_factory.getbasetemp().glob("explored*"))
    cases = ElementTree.parse(folder / "all.xml").getroot().iter("testcase")
    case = next(each for each in cases if each.get("name") == "test_lost_update[ranks=2]")
    told = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert told["explored_schedules"] == "40"
    assert (told["explored_failures"], told["explored_token"]) == ("1", TOKEN)
    message = case.find("failure").get("message")  # type: ignore[union-attr]
    assert message is not None
    assert message.startswith("both ranks: assert 1 == 2 (in ")
    file = next((folder / "recorded").iterdir())
    with gzip.open(file, "rt") as lines:
        assert TOKEN in json.loads(next(iter(lines)))["command"]
    assert (folder / ".phalanx" / ".gitignore").read_text() == "*\n"


FEW = """
import pytest, torch.distributed as dist

def come():
    return dist.distributed_c10d._get_default_store().add("come", 1)

@pytest.mark.ranks(2, explore=15)
def test_one(rank):
    assert (rank, come()) != (1, 1)

@pytest.mark.ranks(2)
def test_other(rank):
    come()
"""


def test_what_failed_is_tried_first_the_next_time(tmp_path: Path) -> None:
    once = ["-q", "--ranks-explore", "1"]
    first, *again = run_many(
        tmp_path,
        [["-q"], once, [*once, "-p", "no:phalanx"], ["-q", "-n2"]],
        files={"test_few.py": FEW, "pytest.ini": "[pytest]\nranks_explore = 5\n"},
    )
    assert "phalanx explored 20 schedules of 2 tests" in first.text, "the ini file asks, too"
    assert "1 failure in 1 test" in again[0].text
    assert "(in 1 of 1 schedule)" in again[0].text
    assert "phalanx explored 20 schedules of 2 tests" in again[2].text, "from workers of xdist"


def test_a_debugger_stands_in_the_run_that_is_repeated(tmp_path: Path) -> None:
    stops = "    place = come()\n    breakpoint()\n    assert (rank, place)"
    stops = FEW.replace("    assert (rank, come())", stops)
    token = ["test_few.py::test_one[ranks=2]", "--ranks-replay", "2-0.1-1f4f"]
    ran = run_pytest(
        tmp_path, *token, files={"test_few.py": stops}, stdin="p ('rank', rank)\nc\nc\n"
    )
    assert "('rank', 1)" in ran.text, "rank 1 comes first in this run"
    assert ran.text.count("PDB set_trace") >= 1
    after = run_pytest(tmp_path, *token, "--pdb", files={"test_few.py": FEW}, stdin="p rank\n")
    assert "PDB post_mortem" in after.text
    assert "(Pdb) 1" in after.text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--ranks-replay", "2-0.1-1f4f"], "it is the token of one test on ranks that are thr"),
        (["--ranks-replay", "no"], "ERROR: --ranks-replay no: give the token that a failure"),
        (["--ranks-explore", "0"], "--ranks-explore 0: schedules=0: give how many schedules"),
        (["--ranks-explore", "5, strategy=dfs"], "strategy='dfs': choose one of 'pos', 'pct'"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, args: list[str], text: str) -> None:
    ran = run_pytest(tmp_path, *args, files={"test_few.py": FEW})
    assert ran.code == 4
    assert text in ran.text
    assert "Traceback" not in ran.text


def test_a_token_for_other_ranks_is_refused(tmp_path: Path) -> None:
    one = ["test_few.py::test_one[ranks=2]", "--ranks-replay", "3-0.1-1f4f"]
    ran = run_pytest(tmp_path, *one, files={"test_few.py": FEW})
    assert "it is the token of a run on 3 ranks, and test_few.py::test_one[ranks=2]" in ran.text


# -- what can be asked for ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (True, {}),
        (False, None),
        (200, {"schedules": 200}),
        ({"seconds": 5, "faults": "kill"}, {"seconds": 5, "faults": "kill"}),
        (ExploreOptions(strategy="pct", seed=3), {"strategy": "pct", "seed": 3}),
    ],
)
def test_values_of_the_marker(given: object, said: object) -> None:
    assert read_explore(given) == said


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (0, r"explore=0: schedules=0: give how many schedules"),
        ("200", r"explore='200': give how many schedules to try, or what else"),
        ({"replay": "x"}, r"unknown setting 'replay'; allowed: schedules, seconds,"),
        ({"strategy": "x"}, r"strategy='x': choose one of"),
        ({"faults": "rain"}, r"there is no kind 'rain'"),
    ],
)
def test_wrong_values_of_the_marker(given: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_explore(given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("on", {}),
        ("off", None),
        ("200", {"schedules": 200}),
        ("seconds=2.5, strategy=pct", {"seconds": 2.5, "strategy": "pct"}),
        ("50, faults='kill,delay'", {"schedules": 50, "faults": "kill,delay"}),
    ],
)
def test_texts_of_the_option(text: str, said: object) -> None:
    assert parse_explore(text, "--ranks-explore") == said


@pytest.mark.parametrize("text", ["1, 2", "seconds", "strategy=", "**x", ")", "open('x')"])
def test_wrong_texts_of_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--ranks-explore: "):
        parse_explore(text, "--ranks-explore")


def _explored(given: Given | None = None, **asked: object) -> object:
    given = given or Given()
    plan = find_plan([pytest.mark.ranks.with_args(2, **asked).mark], given)
    assert plan is not None
    return plan.ways[0]


def test_the_option_is_stronger_than_the_marker_and_the_ini_file_weaker() -> None:
    given = Given(
        defaults={"explore": {"seconds": 3, "strategy": "pct"}},
        options={"explore": {"schedules": 7}},
    )
    explore = _explored(given, explore={"schedules": 5, "strategy": "random"}).explore  # type: ignore[attr-defined]
    assert (explore.schedules, explore.seconds, explore.strategy) == (7, 3, "random")
    assert _explored(given, explore=False).explore is not None  # type: ignore[attr-defined]
    assert _explored(Given(defaults=given.defaults), explore=False).explore is None  # type: ignore[attr-defined]
    assert _explored(Given(options={"explore": None}), explore=5).explore is None  # type: ignore[attr-defined]


def test_what_follows_for_the_run() -> None:
    way = _explored(explore=5, seed=7)
    assert (way.clock, way.seed, way.explore.seed) == ("virtual", 0, 7)  # type: ignore[attr-defined]
    assert _explored(explore=5, clock="real").clock == "real"  # type: ignore[attr-defined]
    assert _explored(engine="threads").clock == "real"  # type: ignore[attr-defined]
    assert _explored(Given(replay="2-a7f3")).explore.replay == "2-a7f3"  # type: ignore[attr-defined]
    assert _explored(Given(engines=("processes",)), explore=5).explore is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"explore": 5, "engine": "processes"}, "explore=5: ranks that are explored are thr"),
        ({"explore": 5, "record": "x.gz"}, "record='x.gz': one run is recorded, and this"),
    ],
)
def test_what_does_not_go_together(asked: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        _explored(**asked)  # type: ignore[arg-type]
