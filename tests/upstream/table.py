"""Results of the upstream suite as text. Pure functions, used by `run.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Statuses = Mapping[str, Mapping[str, str]]

SIZES = ("3", "4", "8")
SIGNS = {"passed": "pass", "skipped": "-", "": ""}

HEAD = """\
# torch's own backend suite on our ranks

torch ships the suite that its backends are tested with
(`torch/testing/_internal/distributed/distributed_test.py`, {count} tests in {version}). It is
run here from the installed torch, unchanged, with its profiler assertions on: once on real Gloo
processes and once on ranks that are threads. `tests/upstream/run.py --docs docs/upstream.md`
writes this page from the results stored in `tests/upstream/results/`. The tests check that page
and results agree, and the slow ones that a new run gives the same.

    python tests/upstream/run.py --ranks 3,4,8     on threads
    python tests/upstream/run.py --engine gloo     on Gloo processes
    python tests/upstream/run.py --gpu-tests       those that ask for GPUs, with CPU tensors

The driver supplies what the suite takes for granted of a process and a thread does not have: a
process id for each rank, because the suite names files after it, and a count of its own in the
suite's file barrier. Everything else is the product as it is.

"""

PLAIN = """\
## All tests, without a GPU

{summary}
`pass`: it ran and passed. `-`: the suite skips it there, for the reason given. `FAIL`: it ran
and failed.

"""

GPU = """\
## The tests that ask for GPUs, with CPU tensors

Most of these test DDP and its relatives, and only their set-up mentions a GPU. The suite is
told that there are eight, and every device it then names becomes the CPU
(`tests/upstream/pretend.py`). What is really about GPUs fails under this, on Gloo as on our
ranks: `SyncBatchNorm` refuses modules on the CPU, and streams and events need an accelerator.
Not run at all:

{left_out}
{summary}
"""

DIFFERENT = """\
## Differences

{differences}"""


def render_summary(results: Iterable[Mapping[str, Any]]) -> str:
    """How many passed, were skipped and failed, for each number of ranks."""
    counts: dict[int, Counter[str]] = {}
    for result in results:
        counts.setdefault(result["ranks"], Counter())[result["status"]] += 1
    return "\n".join(
        f"{ranks} ranks: " + ", ".join(f"{n} {status}" for status, n in sorted(found.items()))
        for ranks, found in sorted(counts.items())
    )


def render_page(
    version: str,
    plain: tuple[Statuses, Statuses],
    gpu: tuple[Statuses, Statuses],
    *,
    differences: Mapping[str, str],
    left_out: Mapping[str, str],
) -> str:
    """The page docs/upstream.md; each pair is what Gloo and what our ranks gave."""
    listed = _list(differences) or "None: every test ends as on Gloo.\n"
    return "".join(
        [
            HEAD.format(count=len(plain[0]), version=version),
            PLAIN.format(summary=_totals(*plain)),
            _rows(*plain),
            "\n",
            GPU.format(left_out=_list(left_out), summary=_totals(*gpu)),
            _rows(*gpu),
            "\n",
            DIFFERENT.format(differences=listed),
        ]
    )


def _list(reasons: Mapping[str, str]) -> str:
    return "".join(f"- `{name[5:]}`: {why}\n" for name, why in sorted(reasons.items()))


def _totals(gloo: Statuses, threads: Statuses) -> str:
    """Numbers of tests that passed of those that ran."""
    lines = ["| | " + " | ".join(f"{size} ranks" for size in SIZES) + " | different tests |"]
    lines.append("|---" * (len(SIZES) + 2) + "|")
    for who, statuses in (("Gloo processes", gloo), ("Phalanx threads", threads)):
        cells = [_passed_of_run(statuses, (size,)) for size in (*SIZES,)]
        cells.append(_passed_of_run(statuses, SIZES))
        lines.append(f"| {who} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _passed_of_run(statuses: Statuses, sizes: tuple[str, ...]) -> str:
    """A test counts once: as run if it ran at any size, as passed if it never failed."""
    ends = [
        {_word(told.get(size, "")) for size in sizes} - {"skipped", ""}
        for told in statuses.values()
    ]
    run = [end for end in ends if end]
    return f"{sum(end == {'passed'} for end in run)} of {len(run)}"


def _rows(gloo: Statuses, threads: Statuses) -> str:
    heads = [f"Gloo {size}" for size in SIZES] + [f"threads {size}" for size in SIZES]
    lines = ["| test | " + " | ".join(heads) + " | why skipped or failed |"]
    lines.append("|---" * (len(heads) + 2) + "|")
    for name in sorted({*gloo, *threads}):
        sides = (gloo.get(name, {}), threads.get(name, {}))
        cells = [_sign(side.get(size, "")) for side in sides for size in SIZES]
        told = [side[size] for side in sides for size in SIZES if ":" in side.get(size, "")]
        why = "; ".join(dict.fromkeys(each.partition(": ")[2] for each in told))
        lines.append(f"| `{name[5:]}` | " + " | ".join(cells) + f" | {why} |")
    return "\n".join(lines).replace("  |", " |") + "\n"


def _word(told: str) -> str:
    return told.partition(":")[0]


def _sign(told: str) -> str:
    return SIGNS.get(_word(told), "FAIL")
