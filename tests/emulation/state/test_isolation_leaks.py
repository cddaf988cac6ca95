"""Whatever ranks do to what they have of their own, the process is as before."""

from __future__ import annotations

import atexit
import builtins
import gc
import logging
import os
import random
import sys
import tempfile
import threading
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.emulation.random import helper_thread_rng
from phalanx.emulation.state import descriptors, rank_settings, switcher

MEGABYTE = 1 << 20


class Thing:
    pass


def disturb(folder: Path) -> None:
    """A bit of everything."""
    rank = dist.get_rank()
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(rank)
    random.gauss(0, 1)
    numpy.random.randn()
    torch.set_default_dtype(torch.float64)
    torch.backends.cudnn.benchmark = bool(rank)
    torch.set_num_threads(1)
    os.environ["PHALANX_LEAK"] = str(rank)
    os.chdir(folder)
    os.umask(0o077)
    sys.path.insert(0, str(folder))
    logging.getLogger().setLevel(10 + rank)
    logging.getLogger("leaking").addHandler(logging.FileHandler(folder / f"{rank}.log"))
    builtins.print = lambda *args, **kwargs: None
    warnings.simplefilter("ignore")
    atexit.register(random.random)
    weakref.finalize(Thing(), random.random)
    with tempfile.TemporaryFile() as file:
        old = os.dup(2)
        os.dup2(file.fileno(), 2)
        dist.barrier()
        os.dup2(old, 2)
        os.close(old)
    helper = threading.Thread(target=random.random)
    helper.start()
    helper.join()
    dist.barrier()


def state() -> dict[str, Any]:
    """What must not change."""
    gc.collect()  # tests before this one may have left files open
    return {
        "random": random.getstate(),
        "numpy": repr(numpy.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "functions": (random.random, numpy.random.rand, torch.manual_seed, os.write, os.dup2),
        "class": (vars(logging.Logger).get("level"), logging.shutdown, atexit.register),
        "settings": (torch.get_default_dtype(), torch.backends.cudnn.benchmark),
        "threads": (torch.get_num_threads(), threading.active_count()),
        "environ": dict(os.environ),
        "place": (os.getcwd(), list(sys.path), builtins.print, list(warnings.filters)),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "leaking": list(logging.getLogger("leaking").handlers),
        "files": len(os.listdir("/proc/self/fd")),
        "exits": atexit._ncallbacks(),
        "lists": (
            len(rank_settings.in_use),
            len(descriptors.originals),
            len(switcher.switchers),
        ),
        "strangers": len(helper_thread_rng._installed),
    }


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files in /proc")
@pytest.mark.parametrize("how", ["well", "failing", "interrupted"])
def test_nothing_is_left_behind(how: str, tmp_path: Path) -> None:
    def program() -> None:
        disturb(tmp_path)
        if how == "failing" and dist.get_rank() == 1:
            raise ValueError("as planned")
        if how == "interrupted" and dist.get_rank() == 1:
            interrupt_launcher()
        dist.barrier()

    launcher = threading.get_ident()

    def interrupt_launcher() -> None:
        import ctypes

        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(launcher), ctypes.py_object(KeyboardInterrupt)
        )
        threading.Event().wait(5)

    logging.getLogger("leaking")
    phalanx.run(weakref.finalize, Thing(), int, ranks=2)  # what comes with the first of all
    before = state()
    with suppress(phalanx.RankFailedError, KeyboardInterrupt):
        phalanx.run(program, ranks=3)
    after = state()
    assert {key for key in before if before[key] != after[key]} == set()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.slow
def test_many_such_runs_leave_memory_flat(tmp_path: Path) -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def runs(count: int) -> None:
        for _ in range(count):
            phalanx.run(disturb, tmp_path, ranks=2)
        gc.collect()

    runs(40)
    before = resident()
    runs(150)
    assert resident() - before < 6 * MEGABYTE
