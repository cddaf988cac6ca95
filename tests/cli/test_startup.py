"""What `phalanx run` costs before the script begins: what it loads, and what is collected."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from phalanx.cli.main import main

SCRIPT = """
import gc, os, sys

OURS = ("conformance", "testing", "engines.processes", "engines.torchrun",
        "engines.remote", "engines.serialization")
OTHERS = ("cloudpickle", "pdb", "pytest", "sympy", "torch._dynamo", "torch.distributed.fsdp")
if os.environ["RANK"] == "0":
    ours = tuple("phalanx." + name for name in OURS)
    print(sorted(name for name in sys.modules if name.startswith(ours)))
    print([name for name in OTHERS if name in sys.modules])
    print("collects", gc.isenabled(), gc.get_freeze_count() > 100_000)
sys.exit()
"""


def test_a_plain_run_loads_only_its_engine(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "phalanx", "run", "-n", "2", str(script)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    modules = ("", ".addresses", ".torchrun_options")  # for the flags
    assert done.stdout.splitlines() == [
        f"[0]   {[f'phalanx.engines.torchrun{name}' for name in modules]}",
        "[0]   []",
        "[0]   collects True True",
    ]


def test_collection_is_not_touched_in_a_process_that_is_not_ours(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(SCRIPT)
    frozen = gc.get_freeze_count()
    assert main(["run", "-q", "-n", "2", str(script)]) == 0
    assert gc.isenabled()
    assert frozen - 1000 < gc.get_freeze_count() <= frozen  # some are let go meanwhile
