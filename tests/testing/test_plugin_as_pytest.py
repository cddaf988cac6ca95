"""Small things that pytest does for every test, and that a test on ranks is to have as well:
the same test functions on threads and on processes, and what pytest prints or writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.testing.pytest_runs import Ran, run_many

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest, with many processes

BOTH = ("--ranks-engine", "threads,processes")

CONFTEST = """
import logging
import pytest

key = pytest.StashKey[str]()

def pytest_collection_modifyitems(items):
    for item in items:
        item.stash[key] = "of the hook"

@pytest.fixture
def stashed(request):
    return request.node.stash[key]

@pytest.fixture
def speaking(caplog):
    logging.warning("in the setup")
    yield
    assert [each.getMessage() for each in caplog.get_records("call")] == ["in the call"]
    assert not caplog.records
"""

ALIKE = """
import logging
import sys
import threading
import pytest

pytestmark = pytest.mark.ranks(2)

def test_stash(stashed, request):
    assert stashed == "of the hook"
    request.node.stash["own"] = 1

def test_stash_is_the_ranks_own(request):
    assert "own" not in request.node.stash

def test_phases_of_logs(caplog, speaking):
    logging.warning("in the call")
    assert [each.getMessage() for each in caplog.records] == ["in the call"]
    assert [each.getMessage() for each in caplog.get_records("setup")] == ["in the setup"]

def test_silent_setup(caplog):
    logging.warning("in the call")
    assert caplog.get_records("setup") == []

def test_half_a_character():
    print("\\ud800", end="")

def test_what_cannot_be_sent_or_compared(request):
    request.node.user_properties.append(("lock", threading.Lock()))
    request.node.add_report_section("call", "mine", ["no text"])

def test_bytes(capsysbinary):
    sys.stdout.buffer.write(b"\\xff\\xc3\\xa9")
    assert capsysbinary.readouterr().out == b"\\xff\\xc3\\xa9"
"""

LATE = """
import pytest
from phalanx.testing import once_per_test

@once_per_test
@pytest.fixture
def shared(record_property):
    record_property("from", "shared")

@pytest.mark.ranks(2)
def test_late(request):
    request.node.user_properties.append(("own", "kept"))
    request.getfixturevalue("shared")
"""

TOLD = """
import sys
import pytest

pytestmark = pytest.mark.ranks(2)

def test_sections(request, rank):
    request.node.add_report_section("call", "mine", f"section of {rank}")
    request.node.add_report_section("call", "ours", "of both")
    request.node.user_properties.append(("same", "on both"))
    request.node.user_properties.append(("own", rank))
    assert False

def test_tee(capteesys, rank):
    print("teed on", rank)
    assert capteesys.readouterr().out == f"teed on {rank}\\n"
    assert False

class Odd(Exception):
    exceptions = ["no", "group"]

def test_odd_error():
    raise Odd("as raised")

def test_bytes_that_are_no_text():
    sys.stdout.buffer.write(b"\\xff is shown\\n")
    assert False
"""

LIVE = """
import pytest

@pytest.mark.ranks(2)
def test_live(rank):
    print("captured and shown")
    assert False
"""

LOGGED = """
import logging
import pytest

def test_before(cache):
    logging.warning("before")
    cache.set("here/key", 1)

@pytest.mark.ranks(2)
def test_ranks(rank):
    logging.warning("rank %d", rank)

def test_after(cache):
    logging.warning("after")
    assert cache.get("here/key", None) == 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alike")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Ran]:
    arguments = {
        "alike": ["-q", "test_alike.py", *BOTH],
        "told": ["-q", "test_told.py", *BOTH, "--junitxml=told.xml"],
        "late": ["-q", "test_late.py", "--junitxml=late.xml", "-o", "junit_family=xunit1"],
        "tee": ["-q", "test_live.py", *BOTH, "--capture=tee-sys"],
    }
    files = {
        "conftest.py": CONFTEST,
        "test_alike.py": ALIKE,
        "test_told.py": TOLD,
        "test_live.py": LIVE,
        "test_late.py": LATE,
    }
    ran = run_many(folder, list(arguments.values()), files=files)
    return dict(zip(arguments, ran, strict=True))


def test_ranks_have_what_a_test_has(runs: dict[str, Ran]) -> None:
    assert "14 passed" in runs["alike"].text, runs["alike"].text


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_what_a_test_adds_to_its_report(runs: dict[str, Ran], engine: str) -> None:
    shown = runs["told"].section(f"test_sections[ranks=2-{engine}]")
    for rank in range(2):
        assert f"Captured mine call, rank {rank} -" in shown
        assert f"\nsection of {rank}\n" in shown
    assert shown.count("Captured ours call -") == 1


def test_properties_are_in_the_xml_file_once(runs: dict[str, Ran], folder: Path) -> None:
    written = (folder / "told.xml").read_text("utf-8")
    for name, value in (("same", "on both"), ("own[rank 0]", "0"), ("own[rank 1]", "1")):
        assert written.count(f'<property name="{name}" value="{value}" />') == 2, name


def test_properties_are_kept_whatever_comes_after(runs: dict[str, Ran], folder: Path) -> None:
    assert "1 passed" in runs["late"].text, runs["late"].text
    written = (folder / "late.xml").read_text("utf-8")
    assert '<property name="own" value="kept" />' in written
    assert '<property name="from" value="shared" />' in written


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_an_error_that_looks_like_a_group(runs: dict[str, Ran], engine: str) -> None:
    shown = runs["told"].section(f"test_odd_error[ranks=2-{engine}]")
    assert "test_told.Odd: as raised" in shown and "AttributeError" not in shown


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_what_is_captured_twice_is_in_the_report(runs: dict[str, Ran], engine: str) -> None:
    told = runs["told"]
    assert "teed on 0" in told.section(f"test_tee[ranks=2-{engine}]")
    shown = told.section(f"test_bytes_that_are_no_text[ranks=2-{engine}]")
    assert "\ufffd is shown" in shown


def test_captured_and_shown_at_once(runs: dict[str, Ran]) -> None:
    before, _, after = runs["tee"].text.partition("FAILURES")
    assert before.count("[0-1] captured and shown\n") == 2
    assert after.count("\ncaptured and shown\n") == 2


def test_the_log_file_and_the_cache_are_those_of_the_whole_run(tmp_path: Path) -> None:
    settings = "[pytest]\nlog_file = run.log\nlog_file_format = %(message)s\n"
    files = {"test_logged.py": LOGGED, "pytest.ini": settings}
    (ran,) = run_many(
        tmp_path, [["-q", "-p", "cacheprovider", "--cache-clear", *BOTH]], files=files
    )
    assert "4 passed" in ran.text, ran.text
    lines = (tmp_path / "run.log").read_text("utf-8").splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert sorted(lines[1:-1]) == ["rank 0", "rank 0", "rank 1", "rank 1"]


ODD_NAME = """
import pytest

@pytest.mark.ranks(2)
@pytest.mark.parametrize("text", ["$HOME", "`false`", "it's", 'a"b', "back\\\\slash", "plain"])
def test_odd(text):
    assert False
"""


def test_the_replay_line_can_be_given_to_a_shell(tmp_path: Path) -> None:
    name = "test_\u00e9 x.py"
    (ran,) = run_many(tmp_path, [["-q"]], files={"test_odd.py": ODD_NAME, name: ODD_NAME})
    commands = [
        line.removeprefix("  replay    ")
        for line in ran.text.splitlines()
        if line.startswith("  replay")
    ]
    assert len(commands) == 12 and all(map(str.isascii, commands))
    script = "\n".join(f"echo {command}" for command in commands)
    told = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, encoding="utf-8", check=True
    )
    ids = [line.removeprefix("pytest ") for line in told.stdout.splitlines()]
    said = [line.split(" - ")[0] for line in ran.text.splitlines() if line.startswith("FAILED")]
    assert ids == [line.removeprefix("FAILED ") for line in said]
