"""Results of the upstream suite as text. Pure functions, used by `run.py`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Statuses = Mapping[str, Mapping[str, str]]

SIZES = ("3", "4", "8")
SIGNS = {"passed": "pass", "skipped": "-", "": ""}

HEAD = """\
# torch's own backend suite

torch ships the suite that tests its backends
(`torch/testing/_internal/distributed/distributed_test.py`, {count} tests in {version}). The
driver runs it from the installed torch, unchanged, with its profiler assertions on: once on
real Gloo processes and once on ranks that are threads. `tests/upstream/run.py --docs
docs/upstream.md` writes this page from the results in `tests/upstream/results/`. A test holds
that page and results agree, and a slow one that a new run gives the same results.

    python tests/upstream/run.py --ranks 3,4,8     on threads
    python tests/upstream/run.py --engine gloo     on Gloo processes
    python tests/upstream/run.py --gpu-tests       those that ask for GPUs, with CPU tensors

The suite relies on a few things that a process has and a thread has not. The driver supplies
them: a process id for each rank, because the suite names files after it; a count of its own in
the suite's file barrier; an environment without the variables of torchrun; and a barrier before
rank 0 removes a file that other ranks may not have read yet.

"""

PLAIN = """\
## All tests, without a GPU

{summary}
`pass`: it ran and passed. `-`: the suite skips it there. `FAIL`: it ran and failed. The last
column says why.

"""

GPU = """\
## The tests that ask for GPUs, with CPU tensors

Most of these test DDP and its relatives, and only their set-up mentions a GPU. The driver tells
the suite that there are eight GPUs, and every device that the suite names becomes the CPU
(`tests/upstream/pretend.py`). Tests that really need a GPU fail, on Gloo as on threads:
`SyncBatchNorm` refuses modules on the CPU, and streams and events need an accelerator.
These are not run:

{left_out}
{summary}
"""

DIFFERENT = """\
## Differences

{differences}"""


REASONS = [
    (r"Need at least \d+ CUDA|CUDA is not available", "needs GPUs"),
    (r"small world size", "needs 8 ranks"),
    (r"odd world size", "needs an even number of ranks"),
    (r"exact world size of (\d+)", r"needs exactly \1 ranks"),
    (r"world size of (\d+)", r"needs \1 ranks"),
    (r"(?i)nccl.* flaky", "for NCCL, and switched off there"),
    (r"(?i)only nccl|nccl .*only|one of \{'nccl'\}", "for NCCL"),
    (r"(?i)only mpi", "for MPI"),
    (r"pytorch/(?:issues|pull)/(\d+)", r"switched off in torch, #\1"),
    (r"flakiness", "switched off in torch"),
    (r"no torchvision", "needs torchvision"),
    (r"SyncBatchNorm layers only work with GPU", "SyncBatchNorm takes modules on GPUs only"),
    (r"access accelerator device|support events", "needs an accelerator's streams"),
    (r"have NCCL built in|no backend for cpu", "makes a group for NCCL"),
    (r"None mismatch|String comparison", "expects DDP to know its GPU"),
]
"""What a test says that is skipped or fails, and what the page says."""


def render_reason(text: str) -> str:
    """Why a test was skipped or failed, in few words; what is not listed stays as it is."""
    for pattern, words in REASONS:
        found = re.search(pattern, text)
        if found is not None:
            return found.expand(words)
    return text


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
    differing = {name for name in {**plain[0], **gpu[0]} if _differs(name, *plain, *gpu)}
    reasons = {name: differences.get(name, "not explained") for name in differing}
    listed = _list(reasons) or "None: every test ends as on Gloo.\n"
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


def _differs(name: str, *sides: Statuses) -> bool:
    """The sides come in pairs, Gloo's first."""
    return any(sides[i].get(name) != sides[i + 1].get(name) for i in range(0, len(sides), 2))


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
    """A row for each test that ran somewhere; the others in one line for each reason."""
    heads = [f"Gloo {size}" for size in SIZES] + [f"threads {size}" for size in SIZES]
    lines = ["| test | " + " | ".join(heads) + " | why |"]
    lines.append("|---" * (len(heads) + 2) + "|")
    skipped: dict[str, list[str]] = {}
    for name in sorted({*gloo, *threads}):
        told = [side.get(name, {}).get(size, "") for side in (gloo, threads) for size in SIZES]
        why = "; ".join(dict.fromkeys(_why(each) for each in told if _why(each)))
        if {_word(each) for each in told} <= {"skipped", ""}:
            skipped.setdefault(why, []).append(f"`{name[5:]}`")
        else:
            lines.append(f"| `{name[5:]}` | " + " | ".join(map(_sign, told)) + f" | {why} |")
    lines += ["", "Skipped at every size:", ""]
    lines += [f"- {why}: {', '.join(names)}" for why, names in sorted(skipped.items())]
    return "\n".join(lines).replace("  |", " |") + "\n"


def _why(told: str) -> str:
    return told.partition(": ")[2]


def _word(told: str) -> str:
    return told.partition(":")[0]


def _sign(told: str) -> str:
    return SIGNS.get(_word(told), "FAIL")
