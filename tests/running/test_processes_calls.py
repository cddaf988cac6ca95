"""What one call on warm ranks may ask for: to begin afresh, a limit, its own output."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.running.processes.beginning import MOST_GROUPS
from phalanx.running.processes.engine import ProcessesEngine, ProcessSettings


@pytest.fixture(scope="module")
def engine():
    made = ProcessesEngine(ProcessSettings(ranks=2, backend="gloo", timeout=30.0))
    yield made
    made.close()


def total() -> float:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def leave_traces() -> list[float]:
    os.environ["LEFT"] = "behind"
    os.environ.pop("RANK")
    os.chdir("/")
    sys.argv.append("--more")
    sys.path.insert(0, "/nowhere")
    dist.new_group([0, 1])
    dist.new_group([0])
    return [torch.rand(1).item(), random.random()]


def look_around() -> dict[str, object]:
    return {
        "left": os.environ.get("LEFT"),
        "rank": os.environ.get("RANK"),
        "folder": os.getcwd(),
        "argv": list(sys.argv),
        "path": sys.path[0],
        "groups": dist.get_pg_count(),
        "drawn": [torch.rand(1).item(), random.random()],
        "process": os.getpid(),
    }


def test_a_fresh_call_finds_a_rank_as_it_was_started(engine) -> None:
    drawn = engine.call(leave_traces, fresh=True)
    kept = engine.call(look_around)
    fresh = engine.call(look_around, fresh=True)
    for rank in range(2):
        assert kept[rank]["left"] == "behind" and kept[rank]["groups"] > 1
        assert fresh[rank]["process"] == kept[rank]["process"]
        assert fresh[rank] | {"process": 0} == {
            "left": None,
            "rank": str(rank),
            "folder": os.getcwd(),
            "argv": sys.argv,
            "path": sys.path[0],
            "groups": 1,
            "drawn": drawn[rank],
            "process": 0,
        }


def wreck() -> None:
    """Leaves asynchronous calls that nobody meets, and numbers that differ by rank."""
    for _ in range(dist.get_rank()):
        dist.all_reduce(torch.ones(3), async_op=True)


def test_what_a_call_left_open_does_not_meet_the_next_fresh_one(engine) -> None:
    engine.call(wreck, fresh=True)
    assert engine.call(total, fresh=True) == [2.0, 2.0]


def test_ranks_are_replaced_when_too_many_groups_lie_about(engine) -> None:
    first = engine.call(os.getpid, fresh=True)
    found = {tuple(engine.call(os.getpid, fresh=True)) for _ in range(MOST_GROUPS + 2)}
    assert len(found) == 2 and tuple(first) in found
    assert engine.call(total, fresh=True) == [2.0, 2.0]


def destroy_by_myself() -> int:
    dist.destroy_process_group()
    return int(dist.is_initialized())


def test_a_fresh_call_after_one_that_destroyed_its_groups(engine) -> None:
    assert engine.call(destroy_by_myself) == [0, 0]
    assert engine.call(total, fresh=True) == [2.0, 2.0]


# -- a limit in all -----------------------------------------------------------------------


def never_still(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        dist.barrier()


def test_a_call_over_its_limit_ends_whatever_the_ranks_do(engine) -> None:
    engine.call(total)
    start = time.monotonic()
    with pytest.raises(phalanx.StallError) as caught:
        engine.call(never_still, [60.0], limit=1.0)
    assert time.monotonic() - start < 6
    assert str(caught.value).startswith("over the limit of 1 s; ranks 0, 1 at ")
    assert set(caught.value.verdict.stacks) == {0, 1}
    assert engine.call(total) == [2.0, 2.0]


def sleep_in_native_code() -> None:
    if dist.get_rank() == 1:
        ctypes.PyDLL(None).sleep(60)  # no other thread runs; a signal ends it
    dist.barrier()


def test_a_rank_that_goes_on_because_it_was_asked_is_over_the_limit_all_the_same(
    engine,
) -> None:
    engine.call(total)
    with pytest.raises(phalanx.StallError) as caught:
        engine.call(sleep_in_native_code, limit=1.0)
    error = caught.value
    assert error.verdict.over_limit and error.verdict.ranks == (1,)
    assert "sleep(60)" in error.verdict.stacks[1][-1].source
    seen = {block.ranks: block.view.status for block in error.verdict.blocks}
    assert seen == {(0,): "waiting", (1,): "outside"}


def test_a_call_within_its_limit(engine) -> None:
    assert engine.call(total, limit=30.0) == [2.0, 2.0]


# -- the line that says how to run it again -----------------------------------------------


def differ() -> None:
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


def leave_open() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


def test_the_replay_line_is_that_of_the_call(engine) -> None:
    engine.call(total, replay="the first")
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        engine.call(differ, replay="the second")
    assert str(caught.value).endswith("replay    the second")
    engine.call(total, replay="the third")
    with pytest.raises(phalanx.DeadlockError) as caught:
        engine.call(leave_open)
    assert "replay" not in str(caught.value)


# -- output -------------------------------------------------------------------------------


def speak() -> None:
    print("hello from", dist.get_rank())
    print("and this", file=sys.stderr)
    print("no end", end="")


def test_the_output_of_one_call_for_its_caller(engine, capfd) -> None:
    heard: dict[tuple[int, str], str] = {}

    def hear(rank: int, stream: str, text: str) -> None:
        heard[rank, stream] = heard.get((rank, stream), "") + text

    engine.call(speak, on_output=hear)
    assert heard == {
        (0, "out"): "hello from 0\nno end",
        (1, "out"): "hello from 1\nno end",
        (0, "err"): "and this\n",
        (1, "err"): "and this\n",
    }
    assert capfd.readouterr() == ("", "")
    engine.call(speak)
    assert "hello from 1\n" in capfd.readouterr().out
