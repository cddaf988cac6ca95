"""What is expected of each test: what real Gloo processes do with it, but for the differences
listed here, each with its reason. Used by `run.py` and the pages it writes.

Gloo's results are stored in `results/`, measured by `run.py --engine gloo --save`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"

DIFFERENCES: dict[str, str] = {}
"""Name of a test -> why our ranks do not do what Gloo does. Ideally empty."""

GPU_DIFFERENCES = {
    "test_ddp_buffer_hook_allreduce_return_future": (
        "the forward pass writes to buffers whose reduction is under way, as the test itself "
        "says: on a GPU the stream keeps them in order, with CPU tensors our check finds it"
    ),
}
"""The same for tests that ask for GPUs, run with CPU tensors."""

LEFT_OUT = {
    "test_ddp_uneven_inputs": (
        "hundreds of convolutions of 1000 x 1000 images into 256 channels take a CPU too long"
    ),
}
"""Tests for GPUs that are not run with CPU tensors, and why."""

Statuses = dict[str, dict[str, str]]
"""Name of a test -> number of ranks -> how it ended, and behind a colon why."""


def is_as_expected(name: str, ranks: int, told: str, *, gpu_tests: bool) -> bool:
    """A listed difference that is none any more is as unexpected as a new one."""
    expected = expected_status(name, ranks, gpu_tests=gpu_tests)
    if expected is None:
        return told.startswith(("passed", "skipped"))
    listed = name in DIFFERENCES or (gpu_tests and name in GPU_DIFFERENCES)
    return (told == expected) != listed


def expected_status(name: str, ranks: int, *, gpu_tests: bool) -> str | None:
    """How a test ends on Gloo, and why; None if that is not known for the installed torch."""
    version, statuses = stored("gloo", gpu_tests=gpu_tests)
    if version != release(str(torch.__version__)):
        return None
    return statuses.get(name, {}).get(str(ranks))


@cache
def stored(engine: str, *, gpu_tests: bool) -> tuple[str, Statuses]:
    """Results stored by `save`: the release of torch they belong to, and the statuses."""
    path = RESULTS / file_name(engine, gpu_tests=gpu_tests)
    if not path.exists():
        return "", {}
    content = json.loads(path.read_text())
    return content["torch"], content["tests"]


def save(engine: str, statuses: Statuses, *, gpu_tests: bool) -> None:
    """Store results; those for other numbers of ranks of the same torch stay."""
    version = release(str(torch.__version__))
    before, tests = stored(engine, gpu_tests=gpu_tests)
    merged = dict(tests) if before == version else {}
    for name, by_ranks in statuses.items():
        merged[name] = dict(sorted({**merged.get(name, {}), **by_ranks}.items()))
    content = {"torch": version, "tests": dict(sorted(merged.items()))}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / file_name(engine, gpu_tests=gpu_tests)
    path.write_text(json.dumps(content, indent=1) + "\n")
    stored.cache_clear()


def file_name(engine: str, *, gpu_tests: bool) -> str:
    return f"{engine}{'-gpu-tests' if gpu_tests else ''}.json"


def release(version: str) -> str:
    """2.13.0+cpu -> 2.13"""
    return ".".join(version.split(".")[:2])
