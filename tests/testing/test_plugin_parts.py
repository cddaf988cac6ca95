"""Parts of the pytest plugin by themselves: patches of several ranks, errors that travel, and
what a run of ranks is judged to be."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.errors import DeadlockError, RankDied, RankFailedError, StallError, UsageError
from phalanx.model import RankFailure, RankView, ViewBlock
from phalanx.testing import once_per_rank, once_per_test
from phalanx.testing.pytest.fixture_scopes import declared
from phalanx.testing.pytest.item_failure import show_failure
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest.rank_record import Failure, Record
from phalanx.testing.pytest.travel import note_of, pack_error, read_note, unpack_error
from phalanx.testing.pytest_compat.captured_output import KEEP, SHOW, Sieve
from phalanx.testing.pytest_compat.fixture_standins import RankMonkeyPatch, SharedPatches
from phalanx.testing.pytest_compat.hypothesis_examples import OWN_FOLDER, without_own_lines

# -- monkeypatch ----------------------------------------------------------------------------

RANKS = 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(RANKS))))
def test_patches_are_undone_in_whatever_order_ranks_end(order: tuple[int, ...]) -> None:
    owner, mapping = SimpleNamespace(old="first"), {"key": "first"}
    shared = SharedPatches()
    patches = [RankMonkeyPatch(shared) for _ in range(RANKS)]
    for rank, patch in enumerate(patches):
        patch.setattr(owner, "old", rank)
        patch.setattr(owner, "new", rank, raising=False)
        patch.setitem(mapping, "key", rank)
        patch.setitem(mapping, "other", rank)
    left = set(range(RANKS))
    for rank in order:
        patches[rank].undo()
        left.discard(rank)
        assert owner.old == (max(left) if left else "first")
        assert mapping["key"] == (max(left) if left else "first")
    assert not hasattr(owner, "new")
    assert mapping == {"key": "first"}


def test_a_patch_within_a_patch() -> None:
    owner = SimpleNamespace(value=0)
    shared = SharedPatches()
    one, two = RankMonkeyPatch(shared), RankMonkeyPatch(shared)
    one.setattr(owner, "value", 1)
    two.setattr(owner, "value", 2)
    one.setattr(owner, "value", 3)
    two.undo()
    assert owner.value == 3
    one.undo()
    assert owner.value == 0


def test_deleting_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGIN_PARTS", "outer")
    owner = SimpleNamespace(value=0)
    patch = RankMonkeyPatch(SharedPatches())
    patch.delattr(owner, "value")
    patch.setenv("PLUGIN_PARTS", "inner")
    with patch.context() as inner:
        inner.delenv("PLUGIN_PARTS")
        assert "PLUGIN_PARTS" not in os.environ
    assert os.environ["PLUGIN_PARTS"] == "inner"
    patch.undo()
    assert owner.value == 0
    assert os.environ["PLUGIN_PARTS"] == "outer"


def test_what_a_stuck_rank_leaves_is_put_back() -> None:
    owner = SimpleNamespace(value=0)
    shared = SharedPatches()
    for number in (1, 2):
        RankMonkeyPatch(shared).setattr(owner, "value", number)
    shared.undo_rest()
    assert owner.value == 0


# -- declared choices -----------------------------------------------------------------------


def test_decorators_above_and_below() -> None:
    def function() -> None: ...

    assert declared(function) is None
    assert declared(once_per_rank(function)) == "rank"
    made: Any = once_per_test(pytest.fixture(lambda: None))
    assert declared(made.__wrapped__) == "test"
    with pytest.raises(TypeError, match="@once_per_rank goes on a fixture function, not on 5"):
        once_per_rank(5)


# -- errors that travel ---------------------------------------------------------------------


class Needy(ValueError):
    """Pickle makes it anew with one argument, which is not enough."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def there_and_back(error: BaseException) -> BaseException:
    packed = pack_error(error)
    assert packed is not None
    return unpack_error(packed)


def test_an_error_that_can_be_pickled() -> None:
    found = there_and_back(KeyError("x"))
    assert type(found) is KeyError
    assert found.args == ("x",)


@pytest.mark.parametrize("nested", [False, True])
def test_an_error_that_cannot(nested: bool) -> None:
    class Local(Needy):
        pass

    found = there_and_back((Local if nested else Needy)(1, 2))
    assert isinstance(found, Needy)
    assert type(found).__name__ == ("Local" if nested else "Needy")
    assert str(found) == "1 and 2"


# -- judgement ------------------------------------------------------------------------------


def failure(rank: int, error: BaseException, *, when: float = 0.0) -> Failure:
    return Failure(rank, "call", when, type(error).__name__, str(error), "", error=error)


def records(*failures: Failure) -> list[Record]:
    found = [Record(rank) for rank in range(3)]
    for each in failures:
        found[each.rank].failures.append(each)
        found[each.rank].end = "failed"
    return found


def test_what_the_engine_calls_the_cause_is_the_cause() -> None:
    first, later = ValueError("first"), KeyError("later")
    error = RankFailedError("text", {0: later, 2: first})
    error.__cause__ = first
    run = RanksRun(records(failure(0, later), failure(2, first, when=1.0)), error)
    assert run.raised is first
    assert [each.error for each in run.others] == [later]


def test_an_expected_failure_hides_no_other() -> None:
    expected, real = pytest.xfail.Exception("known"), ValueError("real")
    error = RankFailedError("text", {0: expected, 1: real})
    error.__cause__ = expected
    assert RanksRun(records(failure(0, expected), failure(1, real)), error).raised is real


def test_a_late_error_is_no_failure_of_its_own() -> None:
    first = ValueError("first")
    error = RankFailedError("text", {1: first})
    error.__cause__ = first
    run = RanksRun(records(failure(1, first), failure(2, KeyError("while stopping"))), error)
    assert run.others == []


def test_a_rank_that_died_without_a_word() -> None:
    died = RankDied(code=-9, signal="SIGKILL", stderr=["last", "words"])
    error = RankFailedError("text", {1: died})
    error.__cause__ = died
    run = RanksRun(records(), error)
    assert run.raised is died
    assert run.cause is not None
    assert run.cause.line == "died of SIGKILL"


def test_a_verdict_that_no_rank_raised() -> None:
    error = DeadlockError("all wait")
    run = RanksRun(records(), error)
    assert run.raised is error
    assert run.cause is not None
    assert run.cause.verdict


def test_a_failure_comes_before_the_teardown_that_hangs() -> None:
    data = note_of(records(failure(1, ValueError("first"), when=1.0))[1])
    assert data is not None and read_note(b"") is None
    note = read_note(data)
    assert note is not None
    run = RanksRun([Record(0), note, Record(2)], StallError("over the limit\n\n  replay    x"))
    assert str(run.raised) == "first"
    shown = str(show_failure(run, report="all", replay="x"))
    assert shown.index("rank 1:") < shown.index("StallError: over the limit")
    assert shown.count("replay") == 1


def test_reasons_of_skips() -> None:
    skipped = [Record(rank, "skipped", reason=why) for rank, why in enumerate(["a", "b", "a"])]
    assert RanksRun(skipped, None).skip_reason() == "ranks 0, 2: a; rank 1: b"
    for each in skipped:
        each.reason = "same"
    assert RanksRun(skipped, None).skip_reason() == "same"
    skipped[1].end = "passed"
    assert RanksRun(skipped, None).skip_reason() == "ranks 0, 2: same"


def test_what_an_xfail_mark_covers() -> None:
    def is_beyond(*errors: BaseException, phase: Any = "call", told: bool = True) -> bool:
        error = RankFailedError("text", dict(enumerate(errors)))
        error.__cause__ = errors[0]
        failures = [failure(rank, each) for rank, each in enumerate(errors)]
        failures[-1].phase = phase
        run = RanksRun(records(*(failures if told else [])), error)
        return run.is_beyond(lambda each: isinstance(each, ValueError))

    known, other = ValueError("known"), KeyError("other")
    assert not is_beyond(known, known)
    assert not is_beyond(known, pytest.xfail.Exception("known, too"))
    assert is_beyond(known, other)
    assert is_beyond(known, known, phase="teardown")
    assert is_beyond(pytest.fail.Exception("a rank did not find the test"), told=False)
    assert RanksRun(records(), UsageError("cannot be sent")).is_beyond(lambda each: True)


def test_who_skipped_is_not_said_to_have_returned() -> None:
    first = ValueError("first")
    returned = ViewBlock((0, 1), RankView(0, "finished"))
    verdict = RankFailure("rank-failed", "error", (2,), (((2,), "x"),), {}, (returned,))
    error = RankFailedError("text", {2: first}, verdict)
    error.__cause__ = first
    found = records(failure(2, first))
    found[1] = Record(1, "skipped", reason="not here")
    shown = str(show_failure(RanksRun(found, error), report="all", replay="pytest x"))
    assert "\n  stopped   rank 0 had returned\n  skipped   rank 1: not here\n" in shown


# -- Hypothesis -----------------------------------------------------------------------------

HEADING = ["Explanation:", "    These lines were always and only run by failing test cases:"]


def test_our_lines_explain_nothing() -> None:
    example = ["Failing test case: test_x(\n    x=1,\n)"]
    own, theirs = f"        {OWN_FOLDER}/core/baton.py:7", "        /home/me/model.py:9"
    shown = example[0].splitlines()
    assert without_own_lines(example) == shown
    assert without_own_lines([*example, *HEADING, own]) == shown
    assert without_own_lines([*HEADING, own, "        (and 3 more)"]) == []
    assert without_own_lines([*HEADING, own, theirs, *example]) == [*HEADING, theirs, *shown]


def test_what_is_to_be_shown_at_once_is_found_however_it_arrives() -> None:
    whole = f"a{SHOW}b\x1b_c{KEEP}d{SHOW}e{KEEP}"
    for size in range(1, len(whole) + 1):
        kept: list[str] = []
        shown: list[str] = []
        sieve = Sieve(kept.append, shown.append)
        for start in range(0, len(whole), size):
            sieve.write(whole[start : start + size])
        sieve.close()
        assert ("".join(kept), "".join(shown)) == ("ad", "b\x1b_ce"), size


def test_a_mark_that_never_ends_is_text() -> None:
    kept: list[str] = []
    sieve = Sieve(kept.append, lambda text: None)
    sieve.write("a\x1b_phal")
    assert kept == ["a"]
    sieve.close()
    assert kept == ["a", "\x1b_phal"]
