"""Processes and pools of ranks: each rank's own, as if it were a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

import phalanx
from phalanx.engines.program import load_script
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.script_on_threads import run_program
from phalanx.errors import RankFailedError

LOADER = """
import os, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torch.utils.data import get_worker_info

def print(*words):  # at once: torchrun turns buffers off, and lines would mix
    sys.stdout.write(" ".join(map(str, words)) + "\\n")

class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == 7 and os.environ.get("BREAK"):
            raise ValueError("the seventh")
        return torch.tensor([i * i, torch.rand(()).item(), float(os.environ["RANK"])])

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for i in range(info.id, 6, info.num_workers):
            yield i * 10 + int(os.environ["RANK"])

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    data, method = Squares(), sys.argv[1]
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(
        data, batch_size=2, sampler=sampler, num_workers=2,
        multiprocessing_context=method, persistent_workers=True,
    )
    total = torch.zeros(3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            total += batch.sum(0)
            dist.all_reduce(batch)
    print("total", [round(x, 4) for x in total.tolist()])
    options = dict(num_workers=2, multiprocessing_context=method)
    print(sorted(int(x) for x in DataLoader(Stream(), batch_size=None, **options)))
    for batch in DataLoader(data, num_workers=1, multiprocessing_context=method):
        break
    os.environ["BREAK"] = "1"
    try:
        list(DataLoader(data, num_workers=1, multiprocessing_context=method))
    except ValueError as error:
        print("caught", "the seventh" in str(error))
    dist.destroy_process_group()
"""


def run_text(folder: Path, text: str, *args: str, ranks: int = 2) -> None:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    run_program(load_script(str(path), list(args)), Settings(ranks=ranks, init=False))


def children() -> set[int]:
    """Of this process, but for those that serve it as a whole."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")[2].split()
                command = Path(f"/proc/{entry}/cmdline").read_text()
            except OSError:
                continue
            if int(stat[1]) == os.getpid() and "resource_tracker" not in command:
                found.add(int(entry))
    return found


@pytest.mark.timeout(120)
def test_data_loaders_with_workers_by_fork(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = children()
    run_text(tmp_path, LOADER, "fork")
    assert sorted(capfd.readouterr().out.splitlines()) == [
        "[0, 10, 20, 30, 40, 50]",
        "[1, 11, 21, 31, 41, 51]",
        "caught True",
        "caught True",
        "total [500.0, 4.755, 12.0]",  # as with torchrun, compared below
        "total [512.0, 5.4117, 0.0]",
    ]
    assert children() == before


STOPPED = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
loader = DataLoader(TensorDataset(torch.arange(4)), num_workers=1, persistent_workers=True)
for _ in loader: pass
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("as planned")
loader = None
"""


def test_a_loader_that_dies_while_its_rank_is_stopped_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: said.append(str(found)))
    with pytest.raises(RankFailedError, match="rank 1 raised ValueError"):
        run_text(tmp_path, STOPPED)
    assert not said


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_loaders_give_what_they_give_with_torchrun(method: str, tmp_path: Path) -> None:
    path = tmp_path / "loader.py"
    path.write_text(LOADER)

    def run(*command: str) -> list[str]:
        line = [sys.executable, "-m", *command, "-n", "2", str(path), method]
        if command[0] == "torch.distributed.run":
            # By itself torchrun lets Python print every word at once, and words mix.
            line[-4:-2] = ["--nproc-per-node", "2", "--no-python", sys.executable]
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr
        found = []
        for each in done.stdout.splitlines():
            label = re.match(r"\[\d(-\d)?\] +", each)
            times = 2 if label and label[1] else 1  # both ranks have printed the same
            found += [each[label.end() :] if label else each] * times
        return sorted(found)

    assert run("phalanx", "run") == run("torch.distributed.run", "--standalone")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_eight_ranks_with_two_workers_each(tmp_path: Path) -> None:
    before = children()
    run_text(tmp_path, LOADER, "fork", ranks=8)
    assert children() == before


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "methods", [("fork",), pytest.param(("spawn", "forkserver"), marks=pytest.mark.slow)]
)
def test_processes_have_the_environment_of_their_rank(
    methods: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
        import multiprocessing, os, subprocess, sys
        import torch.distributed as dist
        from concurrent.futures import ProcessPoolExecutor

        def tell(queue):
            queue.put((os.environ["RANK"], os.environ["MINE"], os.environ.get("GONE")))

        def rank_of(x):
            return x, os.environ["RANK"]

        if __name__ == "__main__":
            dist.init_process_group("gloo")
            rank = os.environ["RANK"]
            os.environ["MINE"] = "of " + rank
            del os.environ["GONE"]
            for method in sys.argv[1:]:
                context = multiprocessing.get_context(method)
                queue = context.SimpleQueue()
                child = context.Process(target=tell, args=(queue,))
                child.start()
                assert multiprocessing.active_children() == [child]
                dist.barrier()
                assert queue.get() == (rank, "of " + rank, None), method
                child.join()
                assert child.exitcode == 0
            said = subprocess.check_output("echo $RANK", shell=True)
            assert said.decode().strip() == rank
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(rank_of, range(3)) == [(x, rank) for x in range(3)]
            context = multiprocessing.get_context("fork")
            pool = ProcessPoolExecutor(2, mp_context=context)  # never shut down
            assert list(pool.map(rank_of, range(3))) == [(x, rank) for x in range(3)]
            dist.destroy_process_group()
            print("well")
    """
    os.environ["GONE"] = "there"
    try:
        before = children()
        run_text(tmp_path, text, *methods)
    finally:
        del os.environ["GONE"]
    assert capfd.readouterr().out == "well\nwell\n"
    assert children() == before


def test_a_process_that_a_rank_forks_ends_as_processes_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
        import os, sys
        import torch.distributed as dist
        dist.init_process_group("gloo")
        ends = []
        for way in ("exit 3", "exit text", "raise", "end", "_exit"):
            pid = os.fork()
            if pid == 0:
                if way == "exit 3":
                    sys.exit(3)
                if way == "exit text":
                    sys.exit("text")
                if way == "raise":
                    raise ValueError("raised in the child")
                if way == "_exit":
                    os._exit(5)
                break
            ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            assert ends == [3, 1, 1, 0, 5], ends
            dist.barrier()
            print("parent")
    """
    run_text(tmp_path, text)
    said = capfd.readouterr()
    assert said.out == "parent\nparent\n"
    assert said.err.count("ValueError: raised in the child") == 2
    assert "Fatal" not in said.err and "launcher.py" not in said.err


def test_processes_of_a_rank_that_fails_are_ended(tmp_path: Path) -> None:
    text = """
        import multiprocessing, os, subprocess, sys, time
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            sleeper = subprocess.Popen(["sleep", "100"])
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
            child.start()
            if os.fork() == 0:
                time.sleep(100)
            dist.barrier()
        raise ValueError("no more")
    """
    before = children()
    began = time.monotonic()
    with pytest.raises(RankFailedError, match="no more"):
        run_text(tmp_path, text)
    assert children() == before
    assert time.monotonic() - began < 20


def test_processes_of_a_rank_that_is_given_up_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from phalanx.core import launcher

    quick = launcher.Patience(nudge=0.1, again=0.1, give_up=0.6)
    monkeypatch.setattr(launcher, "AFTER_FAILURE", quick)
    over = False

    def body() -> None:
        if dist.get_rank() == 0:
            dist.barrier()
            raise ValueError("the cause")
        subprocess.Popen(["sleep", "100"])
        dist.barrier()
        time.sleep(0.01)
        while not over:
            try:
                while not over:
                    sum(range(1000))
            except BaseException:
                pass

    before = children()
    try:
        with pytest.raises(RankFailedError, match="the cause"):
            phalanx.run(body, ranks=2)
        deadline = time.monotonic() + 5
        while children() != before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert children() == before
    finally:
        over = True


def test_jobs_of_a_shared_pool_run_as_the_rank_that_submits_them() -> None:
    began: list[int] = []
    pool = ThreadPoolExecutor(1, initializer=lambda: began.append(1))

    def job(x: int) -> tuple[int, int, str]:
        dist.barrier()
        return x, dist.get_rank(), os.environ["RANK"]

    def body() -> tuple[list[tuple[int, int, str]], int]:
        rank = dist.get_rank()
        own = ThreadPoolExecutor(2)
        first = own.submit(job, rank).result()
        second = pool.submit(dist.get_rank).result()
        left = pool.submit(time.sleep, 0.01)  # waited for at the rank's end
        assert not left.cancelled()
        return [first], second

    try:
        for _ in range(2):
            found = phalanx.run(body, ranks=3)
            assert found == [([(rank, rank, str(rank))], rank) for rank in range(3)]
        assert (
            pool.submit(lambda: "RANK" in os.environ and "PYTEST_X" in os.environ).result()
            is False
        )
        assert began == [1]
    finally:
        pool.shutdown()


def test_a_job_that_is_cancelled_leaves_nothing_to_wait_for() -> None:
    def body() -> bool:
        pool = ThreadPoolExecutor(1)
        first = pool.submit(time.sleep, 0.05)
        second = pool.submit(time.sleep, 100)
        assert second.cancel()
        first.result()
        pool.shutdown()
        dist.barrier()
        return True

    assert phalanx.run(body, ranks=2) == [True, True]
    with pytest.raises(phalanx.DeadlockError):  # provable again: nobody is outside
        phalanx.run(lambda: body() and dist.get_rank() and dist.barrier(), ranks=2)
