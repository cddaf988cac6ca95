"""What the checks for a machine with a GPU have in common: one line each, and the count.

Imported by scripts of this folder, which Python finds it beside. Puts `src` on the path.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src"))

Check = Callable[[], object]


def run_checks(checks: Sequence[Check]) -> int:
    """Carry them out in order; the exit status."""
    import torch

    print("torch", torch.__version__, "python", sys.version.split()[0], flush=True)
    failed = 0
    for check in checks:
        start = time.perf_counter()
        try:
            told = check()
            word = "ok" if told is None else f"ok  {told}"
        except Exception:
            failed += 1
            word = "FAILED\n" + traceback.format_exc()
        name = check.__name__.replace("_", " ")
        print(f"{name:52} {time.perf_counter() - start:6.2f} s {word}", flush=True)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0
