"""Run real pytest on real test files in a folder of its own, and read what it printed.

Used by the tests of the pytest plugin. The files come from `plugin_samples/`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.forked_programs import run_forked

SAMPLES = Path(__file__).parent / "plugin_samples"
_OUTCOME = re.compile(
    r"^(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR|SUBFAILED\S*)\s+(?:\[\d+\] )?"
    r"(\S+?\.py\S*)(?:: | - |$)(.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Ran:
    """A run of pytest that has ended."""

    code: int
    text: str
    outcomes: dict[str, str] = field(default_factory=dict)
    """By the part of the id after the file."""
    reasons: dict[str, str] = field(default_factory=dict)

    def section(self, name: str) -> str:
        """What is printed about one failed test, without the heading."""
        found = re.search(
            rf"^_+ {re.escape(name)} _+\n(.*?)(?=^(?:_{{3,}} .* _{{3,}}|={{3,}} .*)$)",
            self.text,
            re.MULTILINE | re.DOTALL,
        )
        assert found is not None, f"{name} is not in:\n{self.text}"
        return found.group(1)


def run_pytest(
    folder: Path,
    *args: str,
    files: dict[str, str] | None = None,
    samples: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    timeout: float = 100,
    fresh: bool = False,
) -> Ran:
    """Write the files, copy the samples (as `test_NAME.py`) and run pytest on the folder, in a
    process that has torch already or in a `fresh` one."""
    _lay_out(folder, files or {}, samples)
    command = ["-m", "pytest", "-p", "no:cacheprovider", *args]
    code, text = _run(folder, command, env=env, stdin=stdin, timeout=timeout, fresh=fresh)
    return _read(code, text)


def run_many(
    folder: Path,
    runs: Sequence[Sequence[str]],
    *,
    files: dict[str, str] | None = None,
    samples: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> list[Ran]:
    """Several runs one after the other in one process, which imports torch only once."""
    _lay_out(folder, files or {}, samples)
    arguments = [["-p", "no:cacheprovider", *args] for args in runs]
    _, text = _run(folder, ["-c", _MANY.format(arguments, _END)], env=env)
    parts = re.split(rf"{_END} (\d+)\n", text)
    return [_read(int(code), part) for part, code in zip(parts[::2], parts[1::2], strict=False)]


def _lay_out(folder: Path, files: dict[str, str], samples: tuple[str, ...]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in samples:
        shutil.copy(SAMPLES / f"{name}.py", folder / f"test_{name}.py")


_END = "---- end of this run:"
_MANY = """
import pytest
for args in {}:
    code = int(pytest.main(args))
    print("{}", code, flush=True)
"""


def _run(
    folder: Path,
    command: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    timeout: float = 100,
    fresh: bool = False,
) -> tuple[int, str]:
    done = run_forked(
        [sys.executable, *command],
        cwd=folder,
        env={**_environ(), **(env or {})},
        input=stdin,
        timeout=timeout,
        merged=True,
        fresh=fresh,
        imported=("torch.distributed", "pytest"),
    )
    return done.returncode, done.stdout


def _read(code: int, text: str) -> Ran:
    found = _OUTCOME.findall(text)
    return Ran(
        code,
        text,
        {_short(node): outcome for outcome, node, _ in found},
        {_short(node): reason for _, node, reason in found},
    )


def _short(node: str) -> str:
    return node.partition("::")[2] or node


def _environ() -> dict[str, str]:
    """Without what the pytest around us has set, and without what makes pytest cut its lines
    differently on machines for continuous integration."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    for name in ("CI", "BUILD_NUMBER"):
        kept.pop(name, None)
    return {**kept, "COLUMNS": "100"}
