"""A thousand runs in one process leave it as it was."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.emulation.stdlib.replaced_calls import call_patches
from tests.forked_programs import run_forked

FEW = 50
"""Objects of a kind that may be more after many runs, as of one that still ends. One in each
run would be as many as the runs; one in each failed run, a tenth of them, shows after 1000."""
MEGABYTE = 1 << 20


def program() -> float:
    me = dist.get_rank()
    os.environ["MINE"] = str(me)
    t = torch.ones(1000)
    dist.all_reduce(t)
    pair = dist.new_group([0, 1])
    if me < 2:
        dist.barrier(pair)
    sent = dist.isend(t, (me + 1) % 4)
    dist.recv(torch.zeros(1000), (me - 1) % 4)
    sent.wait()
    helper = threading.Thread(target=lambda: None)
    helper.start()
    helper.join()
    return t[0].item()


def broken() -> None:
    program()
    if dist.get_rank() == 2:
        raise ValueError("as planned")
    dist.barrier()


def run_once(number: int) -> None:
    if number % 10:
        assert phalanx.run(program, ranks=4, seed=number) == [4.0] * 4
        return
    with pytest.raises(phalanx.RankFailedError):
        phalanx.run(broken, ranks=4, seed=number)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def own_objects() -> Counter[str]:
    """How many objects of our classes and of torch's groups are alive."""
    gc.collect()
    kinds = Counter(type(thing) for thing in gc.get_objects())
    names = {f"{kind.__module__}.{kind.__qualname__}": kinds[kind] for kind in kinds}
    ours = (name for name in names if name.startswith("phalanx.") or "ProcessGroup" in name)
    return Counter({name: names[name] for name in ours})


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.timeout(240)  # a thousand are half a minute of work on an idle core
@pytest.mark.parametrize("runs", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_runs_leave_threads_memory_and_environment_as_they_were(runs: int) -> None:
    for number in range(runs // 5):
        run_once(number)
    objects = own_objects()
    memory, threads, environ = resident(), threading.active_count(), dict(os.environ)
    for number in range(runs):
        run_once(number)
    # What tests before this one left may go meanwhile, and a line that is named for the first
    # time is remembered.
    grown = {kind: more for kind, more in (own_objects() - objects).items() if more > FEW}
    assert not grown
    assert threading.active_count() == threads
    assert dict(os.environ) == environ
    # torch keeps 160 bytes for each thread that had groups of its own, for ever, and what the
    # allocator keeps depends on how busy the machine is. Objects are counted above.
    assert resident() - memory < 12 * MEGABYTE


def test_an_open_world_does_not_grow_either() -> None:
    def step():
        t = torch.ones(10)
        for _ in range(5):
            dist.all_reduce(t)

    with phalanx.World(ranks=2) as world:
        for _ in range(20):
            world.run(step)
        objects = own_objects()
        for _ in range(200):
            world.run(step)
        grown = own_objects() - objects
    assert sum(grown.values()) < 20, grown


def test_what_was_replaced_stands_there_as_before() -> None:
    """A `staticmethod` too, and nothing that a class had inherited."""

    def standing() -> dict[tuple[str, str], Any]:
        return {(str(owner), name): vars(owner).get(name) for owner, name, _ in call_patches()}

    before = standing()
    phalanx.run(dist.barrier, ranks=2)
    changed = [place for place, value in standing().items() if value is not before[place]]
    assert before and not changed


STARTS = """
import multiprocessing
import torch.distributed as dist
import phalanx

if __name__ == "__main__":
    phalanx.run(dist.barrier, ranks=2)
    for method in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=abs, args=(1,))
        child.start()
        child.join(50)
        print(method, child.exitcode)
    with multiprocessing.Pool(1) as pool:
        print(pool.map(abs, [-1]))
"""


def test_the_program_starts_processes_after_a_run(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(STARTS)
    done = run_forked([sys.executable, str(script)], timeout=90)
    assert done.stdout.split("\n") == ["fork 0", "spawn 0", "forkserver 0", "[1]", ""], done
