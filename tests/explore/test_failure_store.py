"""Failures are kept in a folder and tried first the next time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.explore.explore_options import ExploreOptions
from phalanx.explore.explorer import Explorer
from phalanx.explore.failures.failure_store import (
    MOST_FILES,
    MOST_OF_PROGRAM,
    FailureStore,
    StoredFailure,
)
from phalanx.explore.strategies.random_walk import RandomWalk
from tests.explore.made_up_programs import MadeUpProgram
from tests.explore.test_shrinking import lost_update, order_of

FAILURE = StoredFailure("4-12.1-a7f3", "deadlock", "ranks 0 and 1 wait for each other")


def rarely(fails: bool) -> Any:
    """Fails in 1 of 24 orders."""
    return order_of(lambda rank: ["k"], lambda order: fails and order == [3, 1, 2, 0])


def explore(subject: MadeUpProgram, schedules: int, store: str | None = ".phalanx") -> Any:
    asked = ExploreOptions(schedules=schedules, store=store)
    return Explorer(subject, asked).explore(RandomWalk(5))


def test_what_is_kept_is_loaded() -> None:
    store = FailureStore("kept", "queue.py:main", 4)
    assert store.load() == []
    store.save([FAILURE])
    assert FailureStore("kept", "queue.py:main", 4).load() == [FAILURE]
    assert FailureStore("kept", "queue.py:main", 3).load() == []
    assert FailureStore("kept", "queue.py:other", 4).load() == []
    assert Path("kept/.gitignore").read_text() == "*\n"
    assert store.notes == []


def test_without_failures_there_is_no_file() -> None:
    store = FailureStore("kept", "queue.py:main", 4)
    store.save([])
    assert not os.path.exists("kept")
    store.save([FAILURE])
    store.save([])
    assert os.listdir("kept") == [".gitignore"]


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 2}',
        '{"version": 1, "program": "queue.py:main", "failures": 3}',
        '{"version": 1, "program": "queue.py:main", "failures": [{"token": "x"}]}',
        '{"version": 1, "program": "queue.py:main", "failures": '
        '[{"token": "nonsense", "kind": "", "title": ""}]}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_a_damaged_file_is_ignored_with_a_sentence(damage: str) -> None:
    FailureStore("kept", "queue.py:main", 4).save([FAILURE])
    (path,) = Path("kept").glob("*.json")
    path.write_bytes(damage.encode("utf-8", "surrogateescape"))
    store = FailureStore("kept", "queue.py:main", 4)
    assert store.load() == []
    assert store.notes == [f"{path} cannot be read and is ignored; delete it"]


def test_a_folder_that_cannot_be_written_is_a_sentence() -> None:
    Path("kept").write_text("a file")
    store = FailureStore("kept", "queue.py:main", 4)
    store.save([FAILURE])
    (note,) = store.notes
    assert note.startswith("failures cannot be kept in kept: ")


def test_it_is_bounded() -> None:
    for number in range(MOST_FILES + 5):
        FailureStore("kept", f"{number}.py:main", 4).save([FAILURE])
    assert len(list(Path("kept").glob("*.json"))) == MOST_FILES
    many = [StoredFailure(f"4-{number}.1-a7f3", "deadlock", "") for number in range(50)]
    store = FailureStore("kept", "queue.py:main", 4)
    store.save(many)
    assert store.load() == many[:MOST_OF_PROGRAM]
    assert not list(Path("kept").glob(".new*"))


def test_a_stored_failure_is_tried_first() -> None:
    first = explore(MadeUpProgram(rarely(True), 4), 200)
    (failure,) = first.failures
    (path,) = Path(".phalanx").glob("*.json")
    assert json.loads(path.read_text())["failures"][0]["token"] == failure.token
    again = explore(MadeUpProgram(rarely(True), 4), 1)
    assert [each.token for each in again.failures] == [failure.token]


def test_a_stored_failure_that_passes_now_is_forgotten() -> None:
    explore(MadeUpProgram(rarely(True), 4), 200)
    assert explore(MadeUpProgram(rarely(False), 4), 3).passed
    assert not list(Path(".phalanx").glob("*.json"))


def test_the_result_of_one_that_passes_now_on_fewer_ranks_is_no_other_result() -> None:
    explore(MadeUpProgram(lost_update, 4), 50)
    (path,) = Path(".phalanx").glob("*.json")
    (kept,) = json.loads(path.read_text())["failures"]
    assert kept["token"].startswith("2-")

    def mended(ranks: int) -> Any:
        """What it ends with depends on how many ranks there are."""
        threads, _ = rarely(False)(ranks)
        return threads, lambda: [ranks] * ranks

    found = explore(MadeUpProgram(mended, 4), 20)
    assert found.passed
    assert found.results == 1


def test_with_none_nothing_is_kept() -> None:
    assert not explore(MadeUpProgram(rarely(True), 4), 200, store=None).passed
    assert not os.path.exists(".phalanx")


def test_ctrl_c_keeps_what_was_found_and_what_was_not_tried() -> None:
    FailureStore(".phalanx", "program.py:program", 2).save(
        [FAILURE, StoredFailure("2-0.1-0000", "old", "not tried")]
    )
    subject = MadeUpProgram(lost_update, 2)
    runs: list[int] = []

    def interrupt(progress: Any) -> None:
        runs.append(1)
        if progress.failures:
            raise KeyboardInterrupt

    asked = ExploreOptions(schedules=500)
    explorer = Explorer(subject, asked, interrupt)
    with pytest.raises(KeyboardInterrupt):
        explorer.explore(RandomWalk(0))
    (failure,) = explorer.result().failures
    kept = FailureStore(".phalanx", "program.py:program", 2).load()
    assert failure.token in [each.token for each in kept]
    before = len(runs)
    explorer.result()
    assert len(runs) == before


def test_a_real_program_is_known_by_its_file_and_name() -> None:
    with pytest.raises(phalanx.UsageError):
        phalanx.explore(lambda: None, ranks=2, store="")
