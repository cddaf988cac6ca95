"""How tests run a file of test cases as a user would, and read what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.forked_programs import run_forked

RUNNER = Path(__file__).with_name("outcomes.py")
CASES = Path(__file__).with_name("ported")

TORCHS = "torch.testing._internal.common_distributed"
OURS = "phalanx.testing"

EXPECTTEST = "import unittest\nTestCase = unittest.TestCase\nACCEPT = False\n"
"""torch's test classes import this package; for what they are used for here, this will do."""

IMPORTED = ("torch.distributed", "torch._dynamo")
"""What such a file needs of torch."""

Found = dict[str, tuple[str, str]]


def outcomes_of(file: Path, *names: str, seconds: float = 50, **environ: str) -> Found:
    """For each test "Class.test": how it ended, and the text unittest has of it."""
    command = [sys.executable, str(RUNNER), str(file), *names]
    done = run(command, seconds=seconds, **environ)
    told = [line for line in done.stdout.splitlines() if line.startswith("OUTCOMES ")]
    assert told, done.stdout + done.stderr
    return {
        name: (outcome, text)
        for name, (outcome, text) in json.loads(told[-1].partition(" ")[2]).items()
    }


def run(
    command: Sequence[str], *, seconds: float = 50, folder: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ}
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"):
        env.pop(name, None)
    return run_forked(command, timeout=seconds, cwd=folder, env=env, imported=IMPORTED)


def moved_over(file: Path, folder: Path) -> Path:
    """A copy of a suite that was made for torch's classes, with the one import changed."""
    text = file.read_text(encoding="utf-8")
    assert text.count(f"from {TORCHS} import") == 1
    copy = folder / file.name
    copy.write_text(text.replace(TORCHS, OURS), encoding="utf-8")
    return copy
