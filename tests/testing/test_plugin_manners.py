"""A run of pytest without tests on ranks is the same with and without Phalanx installed, and
ordinary tests beside such tests run as without them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.testing.pytest_runs import Ran, run_pytest

pytestmark = pytest.mark.timeout(300)

PROBE = """
import builtins, gc, json, logging, os, pdb, signal, sys, threading, time, warnings
from pathlib import Path

import pytest

def name(thing):
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"

def process():
    quiet = logging.getLogger("plain.quiet")
    return {
        "set_trace": [name(pdb.set_trace), name(pytest.set_trace), name(sys.breakpointhook)],
        "functions": [name(each) for each in (time.sleep, builtins.print, os.environ, input)],
        "logger": sorted(each for each in vars(logging.Logger) if not each.startswith("__")),
        "handlers": [name(each) for each in (*logging.root.handlers, None, *quiet.handlers)],
        "levels": [handler.level for handler in logging.root.handlers],
        "frozen": gc.get_freeze_count(),
        "threads": [each.name for each in threading.enumerate()],
        "finders": [name(each) for each in sys.meta_path],
        "interrupt": name(signal.getsignal(signal.SIGINT)),
        "streams": [name(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
    }

def run(config):
    plugins = config.pluginmanager
    hooks = {
        key: [(each.plugin_name, name(each.function)) for each in caller.get_hookimpls()]
        for key, caller in vars(plugins.hook).items()
        if hasattr(caller, "get_hookimpls")
    }
    logs = plugins.get_plugin("logging-plugin")
    return {
        "hooks": hooks,
        "plugins": [key for key, plugin in plugins.list_name_plugin() if plugin is not None],
        "pdb": name(plugins.get_plugin("pdbinvoke")),
        "rewritten": sorted(plugins.rewrite_hook._must_rewrite),
        "logs": sorted(vars(logs)) if logs is not None else None,
        "modules": sorted(sys.modules),
    }

def note(key, value):
    folder = Path(os.environ["PROBE"])
    folder.mkdir(exist_ok=True)
    (folder / f"{key}.json").write_text(json.dumps(value))
"""

EARLY = """
def pytest_addoption(pluginmanager):
    # As for a Phalanx that is installed with its files, and not as a folder to work in.
    pluginmanager.rewrite_hook.mark_rewrite("phalanx")
"""

PLAIN = {
    "probe.py": PROBE,
    "early.py": EARLY,
    "conftest.py": """
import os, pytest, probe

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")

def pytest_sessionstart(session):
    probe.note(f"start-{WORKER}", {**probe.run(session.config), **probe.process()})

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    probe.note(f"collected-{WORKER}", probe.run(session.config))

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    probe.note(f"end-{WORKER}", {**probe.run(session.config), **probe.process()})

def pytest_enter_pdb(pdb):
    print("a debugger opens")

@pytest.fixture(scope="session")
def wide():
    yield [1]

@pytest.fixture
def noted(request):
    yield
    probe.note(request.node.name, probe.process())
""",
    "test_plain.py": """
import logging, warnings
import pytest

def test_passes(wide, tmp_path, noted):
    assert wide == [1]

def test_fails(noted):
    given = {"a": 1}
    assert given == {"a": 2}

def test_logs(caplog, noted):
    quiet = logging.getLogger("plain.quiet")
    quiet.propagate = False
    with caplog.at_level("INFO", logger="plain.quiet"):
        quiet.info("one")
        logging.getLogger("plain.other").warning("two")
    assert caplog.messages == ["one", "two"]
    assert len(caplog.handler.records) == 2
    assert False, "so that the log is shown"

def test_output(capsys, noted):
    print("text")
    assert capsys.readouterr().out == "text\\n"
    print("shown")

def test_warns():
    warnings.warn("of a plain test")

@pytest.mark.parametrize("rank", [0, 1])
def test_a_parameter_of_the_name_of_a_fixture(rank):
    assert rank in (0, 1)

@pytest.mark.xfail
def test_expected():
    assert 0
""",
    "test_plain_too.py": """
import unittest

import pytest

@pytest.fixture
def device():
    return "mine"

class TestOfUnittest(unittest.TestCase):
    def test_it(self):
        self.assertEqual(1, 1)

class TestClass:
    def test_own_fixture(self, device, noted):
        assert device == "mine"

def test_unknown_fixture(nothing):
    pass

@pytest.mark.skip(reason="no need")
def test_skipped():
    pass
""",
}

RANKS = """
import pytest

@pytest.mark.ranks(2)
def test_on_ranks(rank):
    assert rank in (0, 1)
"""

DECLARED = {
    "pytest_addoption",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_collection_modifyitems",
    "pytest_collection_finish",
    "pytest_terminal_summary",
}
"""The hooks that Phalanx has in every run: its options and markers, to look for tests, and to
sum up what was explored, which workers of pytest-xdist may have done."""

LOADED = {
    "phalanx",
    "phalanx.errors",
    "phalanx.model",
    "phalanx.testing",
    "phalanx.testing.plugin",
    "phalanx.testing.pytest_compat",
    "phalanx.testing.pytest_compat.pytest_private_calls",
}
STANDARD = set(sys.stdlib_module_names)


def run_project(folder: Path, *args: str, ranks: bool = False) -> tuple[Ran, dict[str, Any]]:
    """What pytest printed, and what the project noted: by when, and what."""
    folder.mkdir()
    files = {**PLAIN, **({"test_a.py": RANKS, "test_z.py": RANKS} if ranks else {})}
    options = ("-p", "early", "--no-header", "-rA", "--color=no", *args)
    env = {"PROBE": str(folder / "noted")}
    ran = run_pytest(folder, *options, files=files, env=env, stdin="c\n" * 9, fresh=True)
    assert ran.code == 1, ran.text
    noted = {}
    for path in (folder / "noted").glob("*.json"):
        text = path.read_text().replace(str(folder), "")
        noted[path.stem] = json.loads(re.sub(r"\d{9,}", "_", text))  # ids of plugins
    return ran, noted


def stable(text: str) -> list[str]:
    """The lines without times, addresses, folders, and the workers of xdist."""
    text = re.sub(
        r"\d+\.\d+s|={3,}|0x[0-9a-f]+|/\S*/with(out)?/|^\[gw\d\] ", "_", text, flags=re.M
    )
    return [line for line in text.splitlines() if not re.fullmatch(r"[.FEsx]+ +\[.*%\]", line)]


def without_our_own(noted: dict[str, Any]) -> dict[str, Any]:
    """Take out what Phalanx declares, and insist that it is that and no more."""
    left = dict(noted)
    if "hooks" in left:
        ours = {key for key, found in left["hooks"].items() if "phalanx" in dict(found)}
        assert ours == DECLARED
        left["hooks"] = {
            key: [each for each in found if each[0] != "phalanx"]
            for key, found in left["hooks"].items()
        }
        left["plugins"] = [each for each in left["plugins"] if each != "phalanx"]
        loaded = {each for each in left["modules"] if each.partition(".")[0] == "phalanx"}
        assert loaded == LOADED
        left["modules"] = [each for each in left["modules"] if each not in loaded]
    return left


@pytest.fixture(scope="module")
def without_phalanx(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, dict[str, Any]]:
    return run_project(tmp_path_factory.mktemp("plain") / "without", "-p", "no:phalanx")


@pytest.mark.parametrize("options", [(), ("--pdb",), ("-n", "1", "--dist=loadfile")], ids=str)
def test_a_run_without_rank_tests_is_the_same(
    tmp_path: Path, options: Any, without_phalanx: Any
) -> None:
    ran, noted = run_project(tmp_path / "with", *options)
    bare_ran, bare = without_phalanx
    if options:
        bare_ran, bare = run_project(tmp_path / "without", *options, "-p", "no:phalanx")
    assert noted.keys() == bare.keys()
    assert any(each.startswith("collected-") for each in noted)
    if "--pdb" in options:
        assert "a debugger opens" in ran.text
    for when, found in noted.items():
        left = without_our_own(found)
        other = bare[when]
        if "modules" in left:  # what Phalanx's modules import of Python's may come earlier
            assert set(left.pop("modules")) - set(other["modules"]) <= STANDARD, when
            other = {key: value for key, value in other.items() if key != "modules"}
        assert left == other, when
    if "-n" in options:
        assert sorted(stable(ran.text)) == sorted(stable(bare_ran.text))
    else:
        assert stable(ran.text) == stable(bare_ran.text)


def test_ordinary_tests_beside_rank_tests_run_as_without(
    tmp_path: Path, without_phalanx: Any
) -> None:
    ran, noted = run_project(tmp_path / "with", ranks=True)
    bare_ran, bare = without_phalanx
    assert ran.outcomes.pop("test_on_ranks[ranks=2]") == "PASSED"
    assert ran.outcomes == bare_ran.outcomes
    assert "phalanx-ranks" in noted["collected-main"]["plugins"]
    assert "phalanx" not in noted["collected-main"]["rewritten"]
    assert "phalanx" in bare["collected-main"]["rewritten"]
    tests = [each for each in bare if each.startswith("test_")]
    assert len(tests) == 5
    for test in tests:
        assert noted[test] == bare[test], test
    for name in ("test_fails", "test_logs"):
        assert stable(ran.section(name)) == stable(bare_ran.section(name))


def test_fixtures_of_the_project_count_before_ours(tmp_path: Path) -> None:
    """Also in tests that are collected after the first one on ranks."""
    files = {
        "conftest.py": """
            import pytest

            @pytest.fixture
            def device():
                return "mine"

            @pytest.fixture
            def rank(rank):
                return rank * 10
            """,
        "test_it.py": """
            import pytest

            @pytest.mark.ranks(2)
            def test_first(device, rank):
                assert device == "mine" and rank in (0, 10)

            def test_plain(device):
                assert device == "mine"

            @pytest.mark.ranks(2)
            def test_second(device, rank):
                assert device == "mine" and rank in (0, 10)
            """,
    }
    files = {name: dedent(text) for name, text in files.items()}
    ran = run_pytest(tmp_path, "-rA", files=files)
    assert ran.code == 0, ran.text
    assert len(ran.outcomes) == 3
