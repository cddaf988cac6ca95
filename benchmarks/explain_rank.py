"""One rank of a program of the bug benchmark, as torchrun starts it: `benchmarks/explain.py`
does. It has torch's Flight Recorder and our black box; when the black box of any rank notices a
hang, both write what they have.

    python benchmarks/explain_rank.py MODULE_OR_SCRIPT ID FOLDER
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist
from torch._C import _distributed_c10d

from benchmarks.bugs import programs
from phalanx import blackbox

HANG = float(os.environ.get("EXPLAIN_HANG", "1.2"))
LONG = 300.0


def main(where: str, name: str, folder: Path) -> None:
    blackbox.install(folder / "box", hang=HANG)
    recorder = folder / "recorder"
    recorder.mkdir(exist_ok=True)
    threading.Thread(target=write_recorder, args=(folder, recorder), daemon=True).start()
    programs.TIMEOUT = LONG
    if where.endswith(".py"):
        sys.argv = [where]
        sys.path.insert(0, str(Path(where).parent))
        runpy.run_path(where, run_name="__main__")
        return
    importlib.import_module(where)
    (program,) = [each for each in programs.registered() if each.id == name]
    programs.carry_out(program)


def write_recorder(folder: Path, recorder: Path) -> None:
    """Gloo has no watchdog that writes the Flight Recorder's ring, so this thread does."""
    asked, done = folder / "box" / ".dump", 0
    while True:
        time.sleep(0.1)
        if asked.exists() and asked.stat().st_mtime_ns != done and dist.is_initialized():
            done = asked.stat().st_mtime_ns
            path = recorder / f"rank_{dist.get_rank()}"
            written = path.with_suffix(".tmp")
            written.write_bytes(_distributed_c10d._dump_fr_trace())
            written.replace(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
