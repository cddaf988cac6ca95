"""Modules per rank as a user meets them: command lines, errors, tests and the example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.engines.program import load_module
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.script_on_threads import run_program
from phalanx.errors import RankFailedError
from tests.emulation.modules.module_programs import run_script, write
from tests.testing.pytest_runs import run_many

EXAMPLE = Path(__file__).parents[3] / "examples" / "module_globals" / "train.py"
COUNTER = {
    "count.py": """
        import torch.distributed as dist
        import counter
        dist.init_process_group("gloo")
        counter.value += 1
        dist.barrier()
        print("counted", counter.value)
        """,
    "counter.py": "value = 0",
}


def lines(text: str) -> list[str]:
    """What ranks have printed, without who did."""
    return [re.sub(r"^\[[\d, -]+\] +", "", line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def no_counter() -> Iterator[None]:
    """One that ranks have shared stays, as any module does."""
    yield
    sys.modules.pop("counter", None)


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ([], 1),
        (["--share", "counter"], 3),
        (["--share", "all"], 3),
        (["--share", "all", "--isolate", "counter"], 1),
    ],
)
def test_options_share_and_isolate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], counted: int
) -> None:
    write(tmp_path, COUNTER)
    assert main(["run", "-n", "3", *options, str(tmp_path / "count.py")]) == 0
    assert lines(capsys.readouterr().out) == [f"counted {counted}"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--isolate", "absent"], "--isolate absent: no package named 'absent'"),
        (["--isolate", "counter,torch"], "--isolate torch: torch is shared by all ranks"),
        (["--isolate", "counter.part"], "counter.part is inside counter"),
        (["--isolate", "all"], "--isolate all: torch and the like exist once"),
        (["--share", "absent"], "--share absent: no package named 'absent'"),
        (["--share", "counter", "--isolate", "counter"], "both name counter: choose one"),
        (["--isolate", ""], "--isolate: '' is no name of a package"),
    ],
)
@pytest.mark.parametrize("engine", ["threads", "processes", "torchrun"])
def test_names_that_are_wrong(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    told: str,
    engine: str,
) -> None:
    write(tmp_path, COUNTER)
    command = ["run", "-n", "3", "--engine", engine, *options, str(tmp_path / "count.py")]
    assert main(command) == 2
    assert told in capsys.readouterr().err


def test_the_replay_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"fails.py": "import counter\n1 / 0", "counter.py": ""})
    script = str(tmp_path / "fails.py")
    options = ["--isolate", "counter", "--share", "all"]
    assert main(["run", "-n", "2", *options, script]) == 1
    command = f"phalanx run --ranks 2 --isolate counter --share all {script}"
    assert f"  replay    {command}" in capsys.readouterr().err.replace("\n            ", " ")


def test_errors_while_importing_are_told_once_and_without_our_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "start.py": "import package.outer",
        "package/__init__.py": "",
        "package/outer.py": "from .inner import load\nload()",
        "package/inner.py": "def load():\n    raise ValueError('bad configuration')",
    }
    write(tmp_path, files)
    assert main(["run", "-n", "3", str(tmp_path / "start.py")]) == 1
    text = capsys.readouterr().err
    assert text.count("Traceback (most recent call last):") == 1
    frames = re.findall(r'File ".*?([^/"]+)", line (\d+), in (\S+)', text)
    assert frames == [
        ("start.py", "1", "<module>"),
        ("outer.py", "2", "<module>"),
        ("inner.py", "2", "load"),
    ]
    assert "RankFailedError: ranks 0-2 raised ValueError: bad configuration\n" in text
    assert "package/inner.py:2 in load" in text


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("import package.absent", "ModuleNotFoundError: No module named 'package.absent'"),
        (
            "from package import absent",
            "ImportError: cannot import name 'absent' from 'package'",
        ),
        ("import package.wrong", "SyntaxError: invalid syntax (wrong.py, line 1)"),
    ],
)
def test_python_s_own_words(tmp_path: Path, statement: str, told: str) -> None:
    files = {"package/__init__.py": "", "package/wrong.py": "x = = 1"}
    with pytest.raises(RankFailedError) as caught:
        run_script(tmp_path, statement, files)
    assert told in str(caught.value)


def test_the_line_of_a_call_in_a_module_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "start.py": "import torch.distributed as dist\ndist.init_process_group()\nimport calls",
        "calls.py": """
            import torch, torch.distributed as dist
            if dist.get_rank() == 1:
                dist.barrier()
            else:
                dist.all_reduce(torch.ones(1))
            """,
    }
    write(tmp_path, files)
    assert main(["run", "-n", "3", str(tmp_path / "start.py")]) == 3
    text = capsys.readouterr().err
    assert "rank 1 called barrier where ranks 0, 2 called all_reduce" in text
    assert "calls.py:4 in <module>" in text and "calls.py:6 in <module>" in text


def test_a_module_of_a_package_as_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "program/__init__.py": "",
        "program/start.py": """
            import sys, torch.distributed as dist
            from . import state
            from .state import Box
            dist.init_process_group("gloo")
            state.value = dist.get_rank()
            boxes = [None] * 2
            dist.all_gather_object(boxes, Box())
            assert all(type(box) is Box for box in boxes)
            assert state.value == dist.get_rank() and __package__ == "program"
            import program.state
            assert program.state is state and __name__ == "__main__"
            """,
        "program/state.py": "value = None\nclass Box: pass",
    }
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    program = load_module("program.start", [])
    sys.modules.pop("program", None)  # looking for a module imports its packages
    assert run_program(
        program, Settings(ranks=2, init=False, modules=IsolationRule(script=True))
    )
    assert not [name for name in sys.modules if name.startswith("program.")]


@pytest.mark.filterwarnings("ignore:.*keeps what torch.compile makes")
def test_compiled_code_has_the_globals_of_its_rank(tmp_path: Path) -> None:
    text = """
        import model
        model.FACTOR = rank + 2
        dist.barrier()
        compiled = torch.compile(model.scaled, backend="eager")
        assert compiled(torch.ones(1)).item() == rank + 2
        dist.barrier()
        assert compiled(torch.ones(1)).item() == rank + 2
        """
    code = """
        import torch
        FACTOR = 1
        def scaled(x):
            import helpers
            return helpers.scale(x) * FACTOR
        """
    files = {"model.py": code, "helpers.py": "def scale(x):\n    return x + 0"}
    run_script(tmp_path, text, files, ranks=2)


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-n", "4", str(EXAMPLE)]) == 0
    shown = lines(capsys.readouterr().out)
    assert shown[:2] == ["step 0: loss 1.182479", "step 1: loss 0.902624"]  # as with torchrun
    assert sorted(shown[5:]) == [
        "rank 0: tensor rank 0, data rank 0, own loss 0.459296",
        "rank 1: tensor rank 1, data rank 0, own loss 0.459296",
        "rank 2: tensor rank 0, data rank 1, own loss 0.471422",
        "rank 3: tensor rank 1, data rank 1, own loss 0.471422",
    ]


@pytest.mark.slow
def test_the_example_is_equal_to_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-n", "4", str(EXAMPLE)]) == 0
    ours = lines(capsys.readouterr().out)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    whole_lines = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    theirs = subprocess.run(
        [*command, "--standalone", "--no-python", sys.executable, str(EXAMPLE)],
        env=whole_lines,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert sorted(set(ours)) == sorted(set(theirs.stdout.splitlines()))


APART = """
import pytest, torch.distributed as dist
import counter as outer

@pytest.mark.ranks(2, isolate=["counter"])
@pytest.mark.parametrize("again", [0, 1])
def test_apart(rank, again):
    import counter
    assert counter is not outer
    counter.value += rank + 1
    dist.barrier()
    assert (counter.value, outer.value) == (rank + 1, 0)

def test_outside():
    import counter
    assert counter is outer
"""
WRONG = """
import pytest

@pytest.mark.ranks(2, isolate=("absent",))
def test_absent():
    pass
"""


@pytest.mark.slow
def test_tests_on_ranks_take_it(tmp_path: Path) -> None:
    files = {"counter.py": "value = 0", "test_apart.py": APART, "test_wrong.py": WRONG}
    good, wrong = run_many(tmp_path, [["test_apart.py", "-rA"], ["test_wrong.py"]], files=files)
    assert list(good.outcomes.values()) == ["PASSED"] * 3, good.text
    assert "isolate=('absent',): no package named 'absent'" in wrong.text


@pytest.mark.parametrize("how", [["names.py"], ["-m", "names"]])
def test_main_has_the_names_that_python_gives_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: list[str],
) -> None:
    source = """
        import sys
        names = {name: value for name, value in globals().items() if name[:2] == "__"}
        for name, value in sorted(names.items()):
            print(name, type(value).__name__, value if isinstance(value, str) else "")
        print(__builtins__, __annotations__, sys.argv, vars(__loader__))
        """
    write(tmp_path, {"names.py": source})
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, *how]
    python = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\n__loader__ SourceFileLoader" in python
    assert main(["run", "-n", "1", *how]) == 0
    assert lines(capsys.readouterr().out) == python.splitlines()
