"""`run` and `World`: what goes in, what comes out, and what is as before afterwards."""

from __future__ import annotations

import doctest
import io
import os
import pdb
import random
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import phalanx
from phalanx.core.strand import here
from phalanx.engines import world as world_module

# -- what goes in and comes out -----------------------------------------------------------


def total(value: float = 1.0) -> float:
    t = torch.tensor(float(value))
    dist.all_reduce(t)
    return t.item()


@pytest.mark.parametrize("module", [phalanx, world_module], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module) -> None:
    result = doctest.testmod(module)
    assert (result.attempted > 0, result.failed) == (True, 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_results_come_in_rank_order(seed: int) -> None:
    def program():
        dist.barrier()
        return dist.get_rank()

    assert phalanx.run(program, ranks=5, seed=seed) == [0, 1, 2, 3, 4]


def test_arguments_are_passed_on() -> None:
    def program(*args, **kwargs):
        return args, kwargs

    expected = [((1, "two"), {"three": 3})] * 2
    assert phalanx.run(program, 1, "two", ranks=2, three=3) == expected
    with phalanx.World(ranks=2) as world:
        assert world.run(program, 1, "two", three=3) == expected
        assert (
            world.run(program, ranks="for the program")
            == [((), {"ranks": "for the program"})] * 2
        )


def test_one_rank_is_a_world_too() -> None:
    assert phalanx.run(total, ranks=1) == [1.0]


def test_without_init_the_program_makes_the_group() -> None:
    def program():
        before = dist.is_initialized()
        dist.init_process_group("gloo")
        return before, dist.is_initialized(), dist.get_backend(), total()

    assert phalanx.run(program, ranks=3, init=False) == [(False, True, "gloo", 3.0)] * 3


def test_the_environment_is_that_of_torchrun() -> None:
    def program():
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        return [os.environ[name] for name in names]

    assert phalanx.run(program, ranks=2) == [[str(r), str(r), "2", "2", "0"] for r in (0, 1)]


def test_a_world_keeps_its_groups_from_run_to_run() -> None:
    made = {}

    def make():
        made[dist.get_rank()] = dist.new_group([0, 2])

    def use():
        me = dist.get_rank()
        t = torch.tensor(1.0)
        if me in (0, 2):
            dist.all_reduce(t, group=made[me])
        return t.item()

    with phalanx.World(ranks=3) as world:
        world.run(make)
        assert world.run(use) == [2.0, 1.0, 2.0]
        assert world.ranks == 3


def test_a_world_keeps_environment_and_generator_of_each_rank() -> None:
    def first():
        os.environ["MINE"] = f"rank {dist.get_rank()}"
        torch.manual_seed(dist.get_rank())
        return torch.rand(1).item()

    def second():
        return os.environ["MINE"], torch.rand(1).item()

    with phalanx.World(ranks=2) as world:
        firsts, seconds = world.run(first), world.run(second)
    for rank in range(2):
        fresh = torch.Generator().manual_seed(rank)
        draws = torch.rand(1, generator=fresh).item(), torch.rand(1, generator=fresh).item()
        assert (firsts[rank], seconds[rank]) == (draws[0], (f"rank {rank}", draws[1]))


def test_a_world_can_be_used_after_a_failed_run() -> None:
    def broken():
        dist.new_group([0])
        if dist.get_rank() == 0:
            raise ValueError("once")
        dist.barrier()

    with phalanx.World(ranks=3) as world:
        with pytest.raises(phalanx.RankFailedError):
            world.run(broken)
        assert world.run(total) == [3.0] * 3


def test_a_closed_world_says_so() -> None:
    world = phalanx.World(ranks=2)
    world.run(total)
    world.close()
    world.close()
    with pytest.raises(phalanx.UsageError, match="this World is closed; make a new one"):
        world.run(total)


RANKS = "give the number of ranks as a whole number from 1 to 4096, e.g. ranks=4"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ranks": 0}, f"ranks=0: {RANKS}"),
        ({"ranks": -3}, f"ranks=-3: {RANKS}"),
        ({"ranks": 5000}, f"ranks=5000: {RANKS}"),
        ({"ranks": "4"}, f"ranks='4': {RANKS}"),
        ({"ranks": 2.0}, f"ranks=2.0: {RANKS}"),
        ({"ranks": True}, f"ranks=True: {RANKS}"),
        ({"engine": "cloud"}, "engine='cloud': choose one of 'threads'"),
        ({"backend": "smoke"}, "backend='smoke': choose one of 'gloo', 'nccl', 'cpu:gloo,"),
        ({"clock": "sun"}, "clock='sun': choose one of 'real', 'virtual'"),
        (
            {"checks": "some"},
            "checks='some': there is no kind 'some'. Give all, none, or kinds",
        ),
        ({"checks": "all,-stall"}, "checks='all,-stall': stall is always found; it cannot be"),
        ({"checks": None}, "checks=None: no kind is given. Give all, none, or kinds"),
        ({"profile": "mpi"}, "profile='mpi': give gloo or nccl, the backend that the program"),
        ({"seed": -1}, "seed=-1: a seed is a whole number from 0 on (0: in order)"),
        ({"seed": "7"}, "seed='7': a seed is a whole number from 0 on (0: in order)"),
        ({"timeout": 0}, "timeout=0: give seconds above 0, or None for no limit"),
        ({"timeout": float("nan")}, "timeout=nan: give seconds above 0, or None for no limit"),
        ({"timeout": "5"}, "timeout='5': give seconds above 0, or None for no limit"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict, told: str) -> None:
    with pytest.raises(phalanx.UsageError) as caught:
        phalanx.run(total, **{"ranks": 2, **options})
    assert str(caught.value).startswith(told)
    assert isinstance(caught.value, ValueError)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(phalanx.UsageError, match="function to call on every rank, not 42"):
        phalanx.run(42, ranks=2)  # type: ignore[arg-type]


# -- runs inside, beside and after one another ----------------------------------------------


def test_a_run_inside_a_rank_is_a_world_of_its_own() -> None:
    def inner(outer_rank):
        return dist.get_world_size(), dist.get_rank(), total(outer_rank), os.environ["RANK"]

    def program():
        me = dist.get_rank()
        nested = phalanx.run(inner, me, ranks=3)
        dist.barrier()
        return nested, total(), dist.get_rank(), os.environ["RANK"]

    assert phalanx.run(program, ranks=2) == [
        ([(3, r, 3.0 * me, str(r)) for r in range(3)], 2.0, me, str(me)) for me in range(2)
    ]


def test_a_failure_of_a_nested_run_is_the_ranks_failure() -> None:
    def broken():
        raise ValueError("deep down")

    def program():
        if dist.get_rank() == 1:
            phalanx.run(broken, ranks=2)
        dist.barrier()

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(program, ranks=2)
    assert list(caught.value.failures) == [1]
    assert type(caught.value.failures[1]) is phalanx.RankFailedError
    assert "deep down" in str(caught.value)


def test_three_worlds_deep() -> None:
    def program(depth):
        return total() if depth == 0 else phalanx.run(program, depth - 1, ranks=2)

    assert phalanx.run(program, 2, ranks=2) == [[[2.0] * 2] * 2] * 2


def in_thread(*bodies):
    """Run the bodies in threads of their own; their results or errors."""
    results = [None] * len(bodies)

    def keep(index, body):
        try:
            results[index] = body()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=keep, args=pair) for pair in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_run_may_start_in_any_thread() -> None:
    assert in_thread(lambda: phalanx.run(total, ranks=3)) == [[3.0] * 3]


def test_runs_from_two_threads_take_turns() -> None:
    inside = []

    def program():
        inside.append(dist.get_world_size())
        dist.barrier()
        time.sleep(0.001)
        inside.append(dist.get_world_size())
        return total()

    def several(ranks):
        return [phalanx.run(program, ranks=ranks) for _ in range(5)]

    assert in_thread(lambda: several(2), lambda: several(3)) == [
        [[2.0] * 2] * 5,
        [[3.0] * 3] * 5,
    ]
    runs = []
    while inside:
        size = inside[0]
        runs.append(inside[: 2 * size])
        del inside[: 2 * size]
    assert all(len(set(run)) == 1 for run in runs), "no run began while another was on"


def test_two_worlds_open_at_once() -> None:
    with phalanx.World(ranks=2) as two, phalanx.World(ranks=3) as three:
        for _ in range(3):
            assert two.run(total) == [2.0] * 2
            assert three.run(total) == [3.0] * 3


def test_one_world_used_by_two_threads() -> None:
    with phalanx.World(ranks=2) as world:
        runs = [lambda: [world.run(total) for _ in range(5)]] * 2
        assert in_thread(*runs) == [[[2.0] * 2] * 5] * 2


def test_a_run_in_a_helper_thread_of_a_rank_is_refused() -> None:
    def program():
        return in_thread(lambda: phalanx.run(total, ranks=2))

    for (error,) in phalanx.run(program, ranks=2):
        assert type(error) is phalanx.UsageError
        assert str(error) == (
            "phalanx.run was called in a thread that a rank started; call it in the rank's "
            "main thread"
        )


# -- what a rank has of its own ---------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_every_rank_has_its_own_generator(seed: int) -> None:
    def program():
        me = dist.get_rank()
        torch.manual_seed(1000 + me)
        drawn = []
        for _ in range(3):
            drawn.append(torch.rand(2).tolist())
            dist.barrier()
            drawn.append(torch.randn(2).tolist())
        return drawn

    for rank, drawn in enumerate(phalanx.run(program, ranks=3, seed=seed)):
        fresh = torch.Generator().manual_seed(1000 + rank)
        for _ in range(3):
            assert drawn.pop(0) == torch.rand(2, generator=fresh).tolist()
            assert drawn.pop(0) == torch.randn(2, generator=fresh).tolist()


def test_ranks_start_with_the_launchers_generator_and_leave_it_alone() -> None:
    def program():
        dist.barrier()
        return torch.rand(1).item()

    torch.manual_seed(5)
    drawn = phalanx.run(program, ranks=3)
    assert drawn == [torch.rand(1).item()] * 3


def test_environment_variables_are_a_ranks_own() -> None:
    def program():
        me = dist.get_rank()
        os.environ["MINE"] = str(me)
        dist.barrier()
        seen = os.environ["MINE"], os.getenv("MINE"), "MINE" in os.environ
        copied = dict(os.environ)["MINE"], os.environ.copy()["MINE"], f"'MINE': '{me}'"
        shown = copied[2] in repr(os.environ)
        dist.barrier()
        if me == 0:
            del os.environ["MINE"]
        dist.barrier()
        with pytest.raises(TypeError, match="str expected"):
            os.environ["MINE"] = me  # type: ignore[assignment]
        return *seen, *copied[:2], shown, os.environ.get("MINE"), len(os.environ) > 10

    for rank, seen in enumerate(phalanx.run(program, ranks=2)):
        me = str(rank)
        assert seen == (me, me, True, me, me, True, None if rank == 0 else me, True)


# -- afterwards everything is as before ----------------------------------------------------


def state_of_the_process() -> dict:
    """Everything that a run replaces, or that torch changes in `init_process_group`."""
    return {
        "environ": dict(os.environ),
        "environ class": type(os.environ),
        "argv": (sys.argv, list(sys.argv)),
        "__main__": sys.modules["__main__"],
        "excepthook": sys.excepthook,
        "stdout": (sys.stdout, sys.stderr),
        "threads": threading.active_count(),
        "strand": here.strand,
        "torch random": torch.get_rng_state().tolist(),
        "python random": random.getstate(),
        "world": distributed_c10d._world,
        "groups": (dist.is_initialized(), len(distributed_c10d._world.pg_map)),
        "names": [
            getattr(distributed_c10d, name, None)
            for name in ("ProcessGroupGloo", "ProcessGroupNCCL", "rendezvous", "_world")
        ],
        "functions": [
            getattr(owner, name)
            for owner, names in (
                (time, ("sleep",)),
                (os, ("stat", "_exit", "abort", "fork")),
                (threading.Condition, ("wait",)),
                (threading.Thread, ("start", "join")),
                (subprocess.Popen, ("__init__",)),
                (dist.Store, ("get", "set", "wait", "add", "check")),
                (dist.TCPStore, ("__init__",)),
                (dist.FileStore, ("__init__",)),
            )
            for name in names
        ],
        "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
    }


def succeed():
    os.environ["LEFT_BEHIND"] = "yes"
    os.environ.pop("PATH", None)
    sys.argv = ["other"]
    dist.new_group([0])
    torch.manual_seed(99)
    return total()


def fail():
    succeed()
    if dist.get_rank() == 1:
        raise ValueError("as planned")
    dist.barrier()


def deadlock():
    succeed()
    dist.recv(torch.zeros(1), src=1 - dist.get_rank())


def leave_brutally():
    dist.new_group([0])
    os._exit(3)


@pytest.mark.parametrize("program", [succeed, fail, deadlock, leave_brutally])
@pytest.mark.parametrize("init", [True, False], ids=["init", "own init"])
def test_after_a_run_everything_is_as_before(program, init: bool) -> None:
    def body():
        if not init:
            dist.init_process_group("gloo")
        return program()

    before = state_of_the_process()
    if program is succeed:
        assert phalanx.run(body, ranks=2, init=init) == [2.0, 2.0]
    else:
        with pytest.raises(phalanx.PhalanxError):
            phalanx.run(body, ranks=2, init=init)
    after = state_of_the_process()
    assert {name: after[name] for name in after if after[name] != before[name]} == {}


def test_threads_that_are_nobodys_see_the_process_as_it_is_during_a_run() -> None:
    """A thread of the launcher's own, beside the run: it has no rank and no groups."""
    asked, answered = threading.Event(), threading.Event()
    seen = {}

    def onlooker():
        asked.wait()
        seen["initialised"] = dist.is_initialized()
        seen["RANK"] = os.environ.get("RANK")
        with pytest.raises(ValueError, match="not been initialized"):
            dist.barrier()
        answered.set()

    def program():
        if dist.get_rank() == 0:
            asked.set()
            answered.wait()
        return total()

    thread = threading.Thread(target=onlooker)
    thread.start()
    assert phalanx.run(program, ranks=2) == [2.0, 2.0]
    thread.join()
    assert seen == {"initialised": False, "RANK": os.environ.get("RANK")}


def test_a_world_that_is_dropped_puts_everything_back() -> None:
    before = state_of_the_process()
    world = phalanx.World(ranks=2)
    world.run(total)
    assert type(os.environ) is not before["environ class"]
    del world
    after = state_of_the_process()
    assert after == before


def test_random_numbers_stay_a_ranks_own_while_it_waits_for_a_process() -> None:
    def program() -> float:
        torch.manual_seed(dist.get_rank())
        subprocess.run(["sleep", "0.05"], check=True)
        return torch.rand(1).item()

    wanted = [
        torch.rand(1, generator=torch.Generator().manual_seed(r)).item() for r in range(3)
    ]
    assert phalanx.run(program, ranks=3) == wanted


def test_a_pool_made_outside_works_before_in_and_after_a_run() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert phalanx.run(lambda: pool.submit(int, "7").result(), ranks=1) == [7]
        assert pool.submit(int, "8").result(timeout=20) == 8


def test_a_world_cannot_be_closed_or_run_again_while_it_runs() -> None:
    with phalanx.World(ranks=2) as world:

        def program() -> None:
            with pytest.raises(phalanx.UsageError, match="cannot be closed while it runs"):
                world.close()
            with pytest.raises(phalanx.UsageError, match="is running already"):
                world.run(int)

        world.run(program)
        assert world.run(dist.get_rank) == [0, 1]


def test_an_error_in_the_launchers_thread_leaves_no_rank_behind() -> None:
    """As the time limit of a test suite, which raises in a signal handler."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError("alarm")

    def spin() -> None:
        while True:
            pass

    others = set(threading.enumerate())
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TimeoutError, match="alarm"):
            phalanx.run(spin, ranks=2)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert set(threading.enumerate()) <= others


def test_an_error_while_a_rank_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread runs by then, although the call that started it has raised."""
    others = set(threading.enumerate())
    begin = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name == "rank-1":
            started.append(thread)
            raise TimeoutError("alarm")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(TimeoutError, match="alarm"):
        phalanx.run(dist.barrier, ranks=3)
    assert [thread.is_alive() for thread in started] == [False]
    assert set(threading.enumerate()) <= others


def test_the_replay_line_repeats_the_options() -> None:
    def body(x: int) -> None:
        raise ValueError(x)

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(body, 3, ranks=2, backend="gloo", seed=7, timeout=9)
    last = str(caught.value).splitlines()[-1]
    assert last.strip() == (
        "replay    phalanx.run(body, ..., ranks=2, backend='gloo', seed=7, timeout=9)"
    )


def test_a_debuggers_prompt_is_no_stall() -> None:
    class SlowUser(io.StringIO):
        def readline(self, *args: Any) -> str:
            select.select([], [], [], 1.2)
            return "continue\n"

    def body() -> int:
        if dist.get_rank() == 1:
            pdb.Pdb(stdin=SlowUser(), stdout=io.StringIO(), nosigint=True).set_trace()
        dist.barrier()
        return dist.get_rank()

    assert phalanx.run(body, ranks=2, timeout=0.5) == [0, 1]
