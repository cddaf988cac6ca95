"""Run a program with torchrun and with `phalanx run`, each time in a process of its own.

Each run starts in an empty folder, without network for the Hugging Face libraries, and with one
thread for each operation, as torchrun gives its ranks. What a run leaves running is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.libraries.compare import lines_in, lines_of_all, lines_of_ranks
from tests.libraries.model import Program, Ran

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "libraries"
SURROUNDINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "PYTHONUNBUFFERED": "",
}
ABORTED = "terminate called without an active exception"
"""Gloo says so when it takes the process down at its end, after the program: now and then."""


def run_with_torchrun(program: Program) -> Ran:
    """Again, where Gloo aborted at the end."""
    for _ in range(3):
        ran = _run_alone(program) if program.starts_ranks else _run_with_torchrun(program)
        if ran.status == "passed" or ABORTED not in ran.text:
            break
    return ran


def _run_with_torchrun(program: Program) -> Ran:
    """Each rank's output comes from a file of its own: lines of ranks cannot mix."""
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "logs")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--redirects", "3"]
        size = ["--nproc-per-node", str(program.ranks), "--log-dir", str(logs)]
        status, seconds, out, err = _run([*launcher, *size], program, folder)
        lines, text = {}, out + err
        for rank in range(program.ranks):
            for path in logs.glob(f"*/attempt_0/{rank}/std*.log"):
                said = path.read_text(errors="replace")
                text += f"\n--- rank {rank}, {path.stem}\n{said}"
                if path.stem == "stdout":
                    lines[rank] = lines_in(said)
    return Ran(status, seconds, lines, text)


def run_with_phalanx(program: Program, *, more: tuple[str, ...] = ()) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        size = [] if program.starts_ranks else ["-n", str(program.ranks)]
        launcher = ["-m", "phalanx", "run", *size, *program.options, *more]
        status, seconds, out, err = _run(launcher, program, folder)
    lines = {0: lines_of_all(out)} if program.starts_ranks else lines_of_ranks(out)
    return Ran(status, seconds, lines, out + err)


def _run_alone(program: Program) -> Ran:
    """With plain Python; its processes write whole lines, because these go to a pipe."""
    with tempfile.TemporaryDirectory() as folder:
        status, seconds, out, err = _run([], program, folder)
    return Ran(status, seconds, {0: lines_of_all(out)}, out + err)


def _run(launcher: list[str], program: Program, folder: str) -> tuple[str, float, str, str]:
    what = ["-m", program.name] if program.module else [str(EXAMPLES / program.name)]
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *launcher, *what, *program.args],
        cwd=_empty(folder),
        env=os.environ | SURROUNDINGS | program.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=program.limit)
        status = "passed" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        _end(
            process, signal.SIGTERM
        )  # torchrun ends its ranks, which are sessions of their own
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20)
        _end(process, signal.SIGKILL)
        (out, err), status = process.communicate(), "timed out"
    return status, time.monotonic() - begun, out, err


def _empty(folder: str) -> str:
    place = Path(folder, "work")
    place.mkdir()
    return str(place)


def _end(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
