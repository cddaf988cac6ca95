"""What ranks on real Gloo see when one of them is killed or stopped, the network is cut or the
store is lost.

Each case starts 4 processes, injures rank 2 (or the store) and writes down what the others'
calls gave: class, message and seconds, on their first call and on a second one. The tables of
`docs/faults.md` and the rules of `phalanx.backend.losses` rest on these figures; the tests
compare ranks that are threads with them.

    python benchmarks/fault_evidence.py [--only TEXT] [--json FILE]    # measure, ten minutes
    python benchmarks/fault_evidence.py --write docs/faults.md         # write the tables anew

The timeout of groups and stores is 3 s here, half an hour and five minutes in life; what is
said to come "at the timeout" came after 3 s.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.faults.fault_cases import TIMEOUT, cases  # noqa: E402, the path comes first
from benchmarks.faults.fault_tables import EVIDENCE, write_tables  # noqa: E402
from benchmarks.faults.gloo_ranks import run_until_met  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", default=EVIDENCE, type=Path, help="where figures are kept")
    parser.add_argument("--write", type=Path, help="only write the tables into this page")
    given = parser.parse_args()
    if given.write is not None:
        write_tables(given.write, json.loads(given.json.read_text(encoding="utf-8")))
        return
    kept: dict[str, Any] = {}
    if given.only and given.json.exists():
        kept = json.loads(given.json.read_text(encoding="utf-8"))["cases"]
    for name, (body, serves) in cases().items():
        if given.only in name:
            kept[name] = run_until_met(name, body, serves)
            _show(name, kept[name])
    figures = {"torch": torch.__version__, "timeout": TIMEOUT, "cases": kept}
    given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _show(name: str, found: dict[int, list[dict[str, Any]]]) -> None:
    print(f"\n{name}", flush=True)
    for rank, notes in found.items():
        for note in notes:
            what = note.get("raised") or "ok"
            text = note.get("text", note.get("value", ""))
            print(
                f"  rank {rank}  {note['what']:<10} {note['seconds']:>5.1f} s  {what} {text}",
                flush=True,
            )


if __name__ == "__main__":
    main()
