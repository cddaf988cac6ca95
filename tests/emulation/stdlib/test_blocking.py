"""Ranks that block where Phalanx does not look, and threads that ranks start.

Every program here would hang if a rank kept the baton while it waits. Nothing is ordered by
time: what must come first is waited for.
"""

from __future__ import annotations

import _thread
import glob
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils.data import DataLoader, TensorDataset

import phalanx
from phalanx.matching.partial_look import SETTLED

both_orders = pytest.mark.parametrize("seed", [0, 11])


def total(value: float, group=None) -> float:
    t = torch.tensor(float(value))
    dist.all_reduce(t, group=group)
    return t.item()


@pytest.mark.parametrize("kind", [queue.Queue, queue.SimpleQueue])
@both_orders
def test_a_queue_fed_by_the_ranks_own_thread(kind, seed: int) -> None:
    def program():
        letters = kind()
        feeder = threading.Thread(target=lambda: [letters.put(i) for i in range(5)])
        feeder.start()
        received = [letters.get() for _ in range(5)]
        feeder.join()
        return total(sum(received))

    assert phalanx.run(program, ranks=4, seed=seed) == [40.0] * 4


def test_others_work_while_one_waits_for_its_thread() -> None:
    """SimpleQueue waits in native code: only the monitor can see it."""
    worked = threading.Event()

    def program():
        if dist.get_rank() == 0:
            letters = queue.SimpleQueue()
            feeder = threading.Thread(target=lambda: (worked.wait(), letters.put("fed")))
            feeder.start()
            return letters.get()
        worked.set()
        return "worked"

    assert phalanx.run(program, ranks=2) == ["fed", "worked"]


def test_a_queue_that_another_rank_feeds() -> None:
    letters: list[queue.Queue[int]] = [queue.Queue() for _ in range(4)]

    def program():
        me = dist.get_rank()
        got = letters[me].get() if me else 0
        if me < 3:
            letters[me + 1].put(got + 1)
        dist.barrier()
        return got

    assert phalanx.run(program, ranks=4) == [0, 1, 2, 3]


def test_queue_get_keeps_its_timeout() -> None:
    def program():
        with pytest.raises(queue.Empty):
            queue.Queue().get(timeout=0.01)
        event = threading.Event()
        assert event.wait(0.01) is False
        event.set()
        assert event.wait(0.01) is True
        return total(1)

    assert phalanx.run(program, ranks=2) == [2.0, 2.0]


def test_a_condition_wakes_once_for_each_notify() -> None:
    def program():
        condition, tokens, taken = threading.Condition(), [], []

        def take():
            with condition:
                while not tokens:
                    condition.wait()
                taken.append(tokens.pop())

        takers = [threading.Thread(target=take) for _ in range(3)]
        for taker in takers:
            taker.start()
        for token in range(3):
            with condition:
                tokens.append(token)
                condition.notify()
        for taker in takers:
            taker.join()
        with pytest.raises(RuntimeError, match="un-acquired lock"):
            condition.wait()
        return sorted(taken)

    assert phalanx.run(program, ranks=2) == [[0, 1, 2]] * 2


@pytest.mark.parametrize("pause", [0.001, None], ids=["sleeping", "tight loop"])
@both_orders
def test_polling_for_a_file_that_another_rank_writes(tmp_path, pause, seed: int) -> None:
    wanted = tmp_path / "wanted"

    def program():
        if dist.get_rank() == 3:
            dist.barrier()
            wanted.write_text("here")
            return "wrote"
        dist.barrier()
        while not wanted.exists():
            if pause is not None:
                time.sleep(pause)
        return wanted.read_text()

    assert phalanx.run(program, ranks=4, seed=seed) == ["here"] * 3 + ["wrote"]


@pytest.mark.parametrize(
    "look",
    [
        lambda path: path.name in os.listdir(path.parent),
        lambda path: path in path.parent.iterdir(),
        lambda path: glob.glob(f"{path.parent}/w*"),
        lambda path: [entry.name for entry in os.scandir(path.parent)],
    ],
    ids=["listdir", "iterdir", "glob", "scandir"],
)
def test_ways_to_look_for_a_file(tmp_path, look) -> None:
    wanted = tmp_path / "wanted"

    def program():
        if dist.get_rank() == 1:
            wanted.touch()
        while not look(wanted):
            pass
        return wanted.exists()

    assert phalanx.run(program, ranks=2) == [True, True]


def test_files_are_copied_as_ever(tmp_path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "link").symlink_to("nowhere")

    def program():
        copied = tmp_path / f"to {dist.get_rank()}"
        shutil.copytree(tmp_path / "from", copied, symlinks=True)
        found = os.readlink(copied / "link")
        shutil.rmtree(copied)
        return found, copied.exists()

    assert phalanx.run(program, ranks=2) == [("nowhere", False)] * 2


def test_polling_for_several_files_at_once(tmp_path) -> None:
    names = [str(tmp_path / str(rank)) for rank in range(3)]

    def program():
        Path(names[dist.get_rank()]).touch()
        while not all(os.path.exists(name) for name in names):
            pass
        return True

    assert phalanx.run(program, ranks=3) == [True] * 3


@both_orders
def test_a_thread_pool_in_every_rank_whose_workers_communicate(seed: int) -> None:
    def program():
        groups = [dist.new_group() for _ in range(3)]
        with ThreadPoolExecutor(max_workers=3) as pool:
            squares = list(pool.map(lambda x: x * x, range(10)))
            sums = list(pool.map(total, [1.0, 2.0, 3.0], groups))
        return sum(squares), sums, total(1)

    assert phalanx.run(program, ranks=4, seed=seed) == [(285, [4.0, 8.0, 12.0], 4.0)] * 4


def answer_when_done(awaited: bool) -> float:
    """Rank 1 waits for what a callback of rank 0's job sends."""
    answer = torch.zeros(1)
    if dist.get_rank() == 1:
        dist.recv(answer, src=0)
        return float(answer)
    may_end, pool = threading.Event(), ThreadPoolExecutor(1)
    done = pool.submit(may_end.wait)
    done.add_done_callback(lambda future: dist.send(torch.ones(1), 1))
    may_end.set()
    if awaited:
        pool.shutdown()
    return 0.0


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_callback_of_a_job_may_communicate(engine: str, awaited: bool) -> None:
    with phalanx.World(ranks=2, engine=engine, backend="gloo", timeout=30) as world:
        assert world.run(answer_when_done, awaited) == [0.0, 1.0]


def test_a_callback_of_a_job_that_is_done_runs_at_once() -> None:
    def program() -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(dist.get_rank)
        seen: list[int] = []
        done.add_done_callback(lambda future: seen.append(future.result()))
        done.add_done_callback(lambda future: dist.barrier())
        return seen

    assert phalanx.run(program, ranks=2) == [[0], [1]]


def test_a_pool_that_is_left_open_keeps_nobody() -> None:
    def program():
        pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="loader")
        return pool.submit(total, 1.0).result()

    assert phalanx.run(program, ranks=3) == [3.0] * 3
    assert [t.name for t in threading.enumerate() if t.name.startswith("loader")] == []


def test_a_pool_that_outlives_the_run_keeps_nobody() -> None:
    pools = []

    def program():
        pools.append(ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader"))
        return pools[-1].submit(total, 1.0).result()

    assert phalanx.run(program, ranks=2) == [2.0] * 2
    for pool in pools:
        pool.shutdown()


def test_a_thread_that_threading_does_not_know_may_notify() -> None:
    """For longer than a set of ranks must stay the same to count as stuck."""

    def program():
        told = threading.Event()
        if dist.get_rank() == 0:
            _thread.start_new_thread(lambda: (time.sleep(2 * SETTLED), told.set()), ())
            told.wait()
        return total(1.0)

    assert phalanx.run(program, ranks=2) == [2.0] * 2


def test_others_work_while_one_sleeps() -> None:
    events = []

    def program():
        me = dist.get_rank()
        if me == 0:
            events.append("lies down")
            time.sleep(0.05)
            events.append("gets up")
        else:
            events.append(f"rank {me} works")
        dist.barrier()

    phalanx.run(program, ranks=3)
    assert events == ["lies down", "rank 1 works", "rank 2 works", "gets up"]


def test_a_sleeping_rank_can_be_longer_asleep_than_the_test_takes() -> None:
    events = []

    def program():
        me = dist.get_rank()
        time.sleep((3 - me) * 3600.0)
        events.append(me)

    began = time.monotonic()
    phalanx.run(program, ranks=3, clock="virtual")
    assert events == [2, 1, 0]
    assert time.monotonic() - began < 30


def test_sleep_refuses_what_pythons_own_refuses() -> None:
    def program():
        with pytest.raises(ValueError, match="non-negative"):
            time.sleep(-1)
        with pytest.raises(TypeError):
            time.sleep("1")
        time.sleep(0)

    phalanx.run(program, ranks=2)


@both_orders
def test_helper_threads_call_collectives(seed: int) -> None:
    def program():
        group = dist.new_group()
        sums = []
        helper = threading.Thread(target=lambda: sums.append(total(2, group)))
        helper.start()
        mine = total(1)
        helper.join()
        return mine, sums

    assert phalanx.run(program, ranks=4, seed=seed) == [(4.0, [8.0])] * 4


def test_a_helper_of_a_helper_belongs_to_the_rank_too() -> None:
    def program():
        seen = []

        def grandchild():
            seen.append((dist.get_rank(), total(1)))

        def child():
            thread = threading.Thread(target=grandchild)
            thread.start()
            thread.join()

        thread = threading.Thread(target=child)
        thread.start()
        thread.join()
        return seen

    assert phalanx.run(program, ranks=3) == [[(rank, 3.0)] for rank in range(3)]


def test_threads_started_by_several_threads_at_once() -> None:
    def program():
        counts = []

        def starter():
            for _ in range(50):
                thread = threading.Thread(target=counts.append, args=(1,))
                thread.start()
                thread.join()

        starters = [threading.Thread(target=starter) for _ in range(4)]
        for thread in starters:
            thread.start()
        for thread in starters:
            thread.join()
        return len(counts)

    assert phalanx.run(program, ranks=2) == [200, 200]


def test_functional_collectives_by_group_name_in_a_helper() -> None:
    def program():
        name = dist.new_group().group_name
        sums = []

        def helper():
            done = functional.all_reduce(torch.tensor([1.0]), "sum", name)
            sums.append(functional.wait_tensor(done).item())

        thread = threading.Thread(target=helper)
        thread.start()
        thread.join()
        return sums

    assert phalanx.run(program, ranks=3) == [[3.0]] * 3


def test_a_group_made_after_a_helper_started_is_there_for_it() -> None:
    def program():
        groups, sums = queue.Queue(), []
        helper = threading.Thread(target=lambda: sums.append(total(1, groups.get())))
        helper.start()
        groups.put(dist.new_group())
        helper.join()
        return sums

    assert phalanx.run(program, ranks=2) == [[2.0]] * 2


def test_threads_see_their_ranks_environment() -> None:
    def program():
        os.environ["MY_RANK"] = os.environ["RANK"]
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(pool.map(os.environ.__getitem__, ["RANK", "MY_RANK"]))

    assert phalanx.run(program, ranks=3) == [[str(rank)] * 2 for rank in range(3)]
    assert "MY_RANK" not in os.environ


@both_orders
def test_a_future_waited_for_natively_completes(seed: int) -> None:
    def program():
        parts = [torch.tensor(float(i)) for i in range(3)]
        works = [dist.all_reduce(part, async_op=True) for part in parts]
        torch.futures.collect_all([work.get_future() for work in works]).wait()
        return [part.item() for part in parts]

    assert phalanx.run(program, ranks=3, seed=seed) == [[0.0, 3.0, 6.0]] * 3


def test_the_last_rank_to_arrive_may_wait_natively_first() -> None:
    """Rank 0 blocks in native code for a future that only rank 1 can complete."""

    def program():
        t = torch.tensor(1.0)
        if dist.get_rank() == 0:
            work = dist.all_reduce(t, async_op=True)
            torch.futures.collect_all([work.get_future()]).wait()
        else:
            dist.all_reduce(t)
        return t.item()

    assert phalanx.run(program, ranks=2) == [2.0, 2.0]


@pytest.mark.parametrize("end", [lambda: None, sys.exit], ids=["return", "sys.exit()"])
def test_threads_that_are_no_daemons_are_waited_for(end) -> None:
    finished = []

    def program():
        may_end = threading.Event()

        def grandchild():
            may_end.wait()
            finished.append(os.environ["RANK"])

        def child():
            threading.Thread(target=grandchild).start()
            threading.Thread(target=may_end.set).start()

        threading.Thread(target=child).start()
        end()

    phalanx.run(program, ranks=3)
    assert sorted(finished) == ["0", "1", "2"]


def test_threads_are_daemons_only_if_the_program_says_so() -> None:
    def program():
        seen = []
        for daemon in (None, False, True):
            body = partial(lambda s: s.append(threading.current_thread().daemon), seen)
            thread = threading.Thread(target=body, daemon=daemon)
            thread.start()
            thread.join()
            seen.append(thread.daemon)
        with pytest.raises(RuntimeError, match="only be started once"):
            thread.start()
        return seen

    assert phalanx.run(program, ranks=2) == [[False] * 4 + [True] * 2] * 2


def test_threads_left_behind_end_without_a_word(capfd) -> None:
    before = threading.active_count()
    spinning = threading.Event()

    def program():
        def spin():
            spinning.set()
            while True:
                time.sleep(0.001)

        threading.Thread(target=spin, daemon=True).start()
        spinning.wait()

    phalanx.run(program, ranks=2)
    assert threading.active_count() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_is_a_process_of_its_own_with_the_ranks_environment() -> None:
    def child(answers):
        time.sleep(0.001)
        answers.put((os.environ["RANK"], threading.active_count()))

    def program():
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        process = context.Process(target=child, args=(answers,))
        process.start()
        answer = answers.get()
        process.join()
        return answer, process.exitcode, total(1)

    assert phalanx.run(program, ranks=2) == [(("0", 1), 0, 2.0), (("1", 1), 0, 2.0)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_can_run_worlds_itself() -> None:
    def program():
        child = os.fork()
        if not child:
            os._exit(int(sum(phalanx.run(total, 1, ranks=3))))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert phalanx.run(program, ranks=2) == [9, 9]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_data_loader_with_worker_processes() -> None:
    def program():
        data = TensorDataset(torch.arange(8.0) + dist.get_rank())
        loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
        return [total(batch.sum()) for (batch,) in loader]

    assert phalanx.run(program, ranks=2) == [[16.0, 48.0]] * 2


def test_a_program_that_a_rank_starts_has_the_ranks_environment() -> None:
    def program():
        show = [sys.executable, "-ISc", "import os; print(os.environ['RANK'])"]
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout

    assert phalanx.run(program, ranks=2) == ["0\n", "1\n"]
