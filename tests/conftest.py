"""The tier of each test that has no marker of its own.

A test belongs to one of three tiers (CONTRIBUTING.md). `slow` is written at the test, and so is
`programs` where most of a file needs none. Else `programs` is given here, by folder, file, the
fixture `processes` and the parameter `engine`: these tests start programs, pytest itself or
ranks that are processes, or run a program many times. The order of the files is made here, too.
"""

from __future__ import annotations

import gc
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# How long an example takes says something about the machine only.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A shell starts jobs in the background with SIGINT ignored, and programs of tests inherit that:
# those that are interrupted here would never end.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def runs_are_kept_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that fail here on purpose must not leave recordings in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


START_PROGRAMS = (
    "backend/test_against_gloo.py",
    "backend/test_monitored_barrier.py",
    "backend/test_one_rank_assumptions.py",
    "backend/test_refusals.py",
    "backend/test_hot_path.py",
    "benchmarks/",
    "blackbox/",
    "cli/",
    "conformance/test_bad_backends.py",
    "conformance/test_command.py",
    "conformance/test_programs.py",
    "conformance/test_runner.py",
    "emulation/children/",
    "emulation/modules/",
    "emulation/random/",
    "emulation/state/test_isolation_settings.py",
    "emulation/stdlib/test_rank_children.py",
    "emulation/stdlib/test_signals.py",
    "engines/processes/",
    "engines/remote/test_remote_checks.py",
    "engines/referee/test_referee_server.py",
    "engines/serialization/",
    "engines/test_determinism.py",
    "engines/test_leaks.py",
    "engines/test_run_recording.py",
    "engines/test_terminal.py",
    "engines/torchrun/",
    "journal/test_journal_of_processes.py",
    "journal/test_journals_alike.py",
    "libraries/",
    "report/timeline/test_page.py",
    "stack/test_against_gloo.py",
    "stack/test_compile.py",
    "testing/test_deepspeed_compat.py",
    "testing/test_plugin_",
    "testing/test_unittest_classes.py",
    "testing/test_unittest_codes.py",
    "testing/test_unittest_helpers.py",
    "testing/test_unittest_lost.py",
    "testing/test_unittest_ported.py",
    "test_checks_doc.py",
    "test_examples.py",
    "test_options.py",
    "test_readme.py",
    "test_system.py",
    "upstream/",
)


def _name(file: Path) -> str:
    return file.relative_to(TESTS).as_posix()


def starts_programs(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    if "processes" in fixtures or _name(item.path).startswith(START_PROGRAMS):
        return True
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get("engine") in ("processes", "torchrun")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    for item in items:
        if item.path.is_relative_to(TESTS) and starts_programs(item):
            item.add_marker(pytest.mark.programs)
    yield
    tests_of = Counter(item.path for item in items)
    items.sort(key=lambda item: _place(item.path, tests_of[item.path]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded while tests are collected stays: nothing for the garbage collector, which
    many tests call."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def _place(file: Path, tests: int) -> tuple[bool, int]:
    """Files that start programs come first and small files last, so that parallel workers,
    which take files in this order, end at about the same time."""
    if file.is_relative_to(TESTS) and _name(file).startswith(START_PROGRAMS):
        return False, 0
    return True, -tests


# -- a worker that dies ---------------------------------------------------------------------

_deaths: list[object] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Called by pytest-xdist when a worker has ended."""
    if error is not None:
        _deaths.append(error)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the worker had still to run was not run: that is no status of tests that failed,
    which `make test` would let run once more."""
    if _deaths:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
