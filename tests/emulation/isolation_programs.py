"""Run a function as real processes, to compare with ranks."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import phalanx
from tests.forked_programs import run_forked


def in_processes(fn: Callable[..., Any], ranks: int) -> list[Any]:
    """What `fn(rank, meet)` returns in processes of their own; `meet` does nothing there."""
    found = []
    for rank in range(ranks):
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on fork
            child = os.fork()
        if child == 0:
            status = 1
            try:
                with os.fdopen(writing, "wb") as pipe:
                    pickle.dump(fn(rank, lambda: None), pipe)
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            raw = pipe.read()
        assert os.waitpid(child, 0)[1] == 0, f"the process for rank {rank} failed"
        found.append(pickle.loads(raw))
    return found


def in_ranks(fn: Callable[..., Any], ranks: int, seed: int = 0) -> list[Any]:
    """What it returns in ranks; `meet` is a barrier there."""
    return phalanx.run(lambda: fn(dist.get_rank(), dist.barrier), ranks=ranks, seed=seed)


def run_script(
    folder: Path,
    source: str,
    *options: str,
    ranks: int = 2,
    script_options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """`phalanx run` on a script with this source."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "phalanx", "run", "-n", str(ranks), *options]
    return run_forked([*command, str(script), *script_options], cwd=folder, timeout=50)
