"""The black box in real ranks: processes on Gloo, which hang, crash, end or get a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import starmap
from pathlib import Path

import pytest

from phalanx.explain.dump_files import read_dumps
from phalanx.explain.explanation import Explanation, explain
from phalanx.model import Deadlock, Mismatch, RankFailure
from tests.forked_programs import ForkedProgram, run_forked, start_forked

BEGIN = """
import os, signal, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
from phalanx import blackbox
blackbox.install(os.environ["DUMPS"], hang=float(os.environ.get("HANG", "0.5")))
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
dist.all_reduce(torch.ones(2))
open(f"at_the_body_{rank}", "w").close()
"""


@contextmanager
def started(
    tmp_path: Path, body: str, *, ranks: int = 2, hang: str = "0.5"
) -> Iterator[list[ForkedProgram]]:
    """The ranks of a program, which are killed at the end."""
    script = tmp_path / "program.py"
    script.write_text(BEGIN + body)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DUMPS": str(tmp_path / "dumps"),
        "HANG": hang,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                start_forked(
                    [sys.executable, str(script)],
                    env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    cwd=tmp_path,
                )
            )
            for rank in range(ranks)
        ]


def wait_for(paths: list[Path], processes: list[ForkedProgram]) -> None:
    """Until all these files are there."""
    end = time.monotonic() + 50
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, [each.poll() for each in processes]
        time.sleep(0.05)


def files(tmp_path: Path, ranks: int) -> list[Path]:
    return [tmp_path / "dumps" / f"rank_{rank}.json" for rank in range(ranks)]


def hang_and_explain(
    tmp_path: Path, body: str, *, ranks: int = 2, in_calls: tuple[int, ...] = (0, 1)
) -> Explanation:
    """What is explained is the hang in `body`, in which these ranks are in calls: on a busy
    machine the start of a rank may stand still for so long that it counts as a hang, and is
    written, and written over."""
    begun = [tmp_path / f"at_the_body_{rank}" for rank in range(ranks)]
    with started(tmp_path, body, ranks=ranks) as processes:
        wait_for([*begun, *files(tmp_path, ranks)], processes)
        settled = max(path.stat().st_mtime for path in begun) + 0.5

        def tells_of_the_body(rank: int, path: Path) -> bool:
            calls = len(json.loads(path.read_text())["calls"])
            return path.stat().st_mtime >= settled and (calls > 1 or rank not in in_calls)

        end = time.monotonic() + 50
        while not all(starmap(tells_of_the_body, enumerate(files(tmp_path, ranks)))):
            assert time.monotonic() < end
            time.sleep(0.05)
    return explain(read_dumps([tmp_path / "dumps"]))


def test_ranks_that_hang_write_and_so_do_the_others(tmp_path: Path) -> None:
    """Rank 2 computes; it is asked by the folder."""
    body = "if rank < 2:\n    dist.barrier()\nwhile True:\n    time.sleep(0.01)\n"
    found = hang_and_explain(tmp_path, body, ranks=3)
    assert found.verdicts[0].kind == "stall"
    assert found.verdicts[0].ranks == (2,)
    texts = [text for _, text in found.facts]
    assert any("rank 2 last called all_reduce #0" in text for text in texts)


def test_messages_which_torchs_recorder_does_not_have(tmp_path: Path) -> None:
    found = hang_and_explain(tmp_path, "dist.recv(torch.empty(1), src=1 - rank, tag=4)\n")
    (verdict,) = found.verdicts
    assert isinstance(verdict, Deadlock)
    assert verdict.cycle == (0, 1)
    (block, *_) = verdict.blocks
    assert block.view.wait is not None
    assert block.view.wait.op.tag == 4
    assert block.view.wait.op.site is not None
    assert block.view.wait.op.site.source.startswith("dist.recv(")


def test_a_mismatch_that_hangs(tmp_path: Path) -> None:
    body = "dist.all_reduce(torch.ones(4)) if rank else dist.broadcast(torch.ones(4), 0)\n"
    body += "dist.barrier()\ndist.barrier()\n"
    found = hang_and_explain(tmp_path, body)
    assert isinstance(found.verdicts[0], Mismatch)
    assert found.verdicts[0].differs == ("operation",)


def test_a_crash_and_the_end(tmp_path: Path) -> None:
    body = "if rank == 1:\n    raise KeyError('lost')\nwork = dist.barrier(async_op=True)\n"
    body += "try:\n    work.wait()\nexcept RuntimeError:\n    pass\n"
    with started(tmp_path, body, hang="0") as processes:
        errors = [process.communicate(timeout=50)[1] for process in processes]
    assert "KeyError" in errors[1]
    found = explain(read_dumps([tmp_path / "dumps"]))
    (verdict,) = found.verdicts
    assert isinstance(verdict, RankFailure)
    assert verdict.ranks == (1,)
    assert verdict.raised == (((1,), "KeyError: 'lost'"),)
    assert verdict.sites[1].source == "raise KeyError('lost')"


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_a_crash_in_c(tmp_path: Path, number: int) -> None:
    """As NCCL's watchdog ends a process; the file is written before."""
    body = "work = dist.barrier(async_op=True) if rank else None\n"
    body += f"os.kill(os.getpid(), {int(number)}) if rank == 0 else work.wait()\n"
    with started(tmp_path, body, hang="0") as processes:
        for process in processes:
            process.wait(timeout=50)
    assert processes[0].returncode == -number
    found = explain(read_dumps([tmp_path / "dumps"]))
    (verdict,) = found.verdicts
    assert isinstance(verdict, RankFailure)
    assert verdict.ranks == (0,)
    assert verdict.raised[0][1].startswith(signal.Signals(number).name)


def test_signals_while_the_main_thread_waits_in_gloo(tmp_path: Path) -> None:
    body = "open(f'here_{rank}', 'w').close()\nif rank == 0:\n    dist.barrier()\n"
    body += "else:\n    time.sleep(100)\n"
    with started(tmp_path, body, hang="0") as processes:
        wait_for([tmp_path / f"here_{rank}" for rank in range(2)], processes)
        processes[0].send_signal(signal.SIGUSR2)
        wait_for(files(tmp_path, 1), processes)
        assert json.loads(files(tmp_path, 1)[0].read_text())["reason"] == "signal"
        assert processes[0].poll() is None
        processes[0].send_signal(signal.SIGTERM)
        assert processes[0].wait(timeout=30) == -signal.SIGTERM


def test_a_right_program_is_not_blamed(tmp_path: Path) -> None:
    body = """
pair = dist.new_group([0, 1])
for step in range(3):
    dist.broadcast(torch.ones(3), 0, group=pair)
    if rank == 0:
        work = dist.isend(torch.ones(2), 1, tag=step)
    else:
        work = dist.irecv(torch.empty(2), tag=step)  # from anybody
    dist.all_gather([torch.empty(1), torch.empty(1)], torch.ones(1))
    work.wait()
    splits = [1, 2] if rank == 0 else [2, 1]
    dist.all_to_all_single(torch.empty(3), torch.ones(3), splits, splits)
dist.destroy_process_group()
"""
    with started(tmp_path, body, hang="0") as processes:
        for process in processes:
            assert process.wait(timeout=50) == 0, process.communicate()
    found = explain(read_dumps([tmp_path / "dumps"]))
    assert not found.found
    assert found.dumps == 2


def test_many_receives_from_any_source_keep_few_tensors(tmp_path: Path) -> None:
    body = """
import gc, weakref
kept = []
for step in range(50):
    if rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        tensor = torch.empty(1)
        dist.recv(tensor)
        kept.append(weakref.ref(tensor))
if rank:
    del tensor
    gc.collect()
    assert sum(each() is not None for each in kept) <= 33
dist.destroy_process_group()
"""
    with started(tmp_path, body, hang="0") as processes:
        for process in processes:
            assert process.wait(timeout=50) == 0, process.communicate()
    found = read_dumps([tmp_path / "dumps"])
    calls = found.dumps["black box"][1].calls
    assert [call.source for call in calls if call.name == "recv"] == [0] * 50
    assert not explain(found).found


ALONE = """
import os, signal, sys, threading
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
from phalanx import blackbox

def state():
    names = {name: vars(dist.ProcessGroup)[name] for name in vars(dist.ProcessGroup)}
    handlers = [signal.getsignal(n) for n in (signal.SIGUSR2, signal.SIGTERM)]
    fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    threads = {thread.name for thread in threading.enumerate()}
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    helper = c10d._new_process_group_helper
    return names, dist.Work.wait, helper, handlers, wakeup, fds, threads

before = state()
for _ in range(2):
    blackbox.install(sys.argv[1], hang=0.2)
    blackbox.install(sys.argv[1])
    assert blackbox.is_installed()
    assert state() != before
    dist.all_reduce(torch.ones(2))
    assert blackbox.dump().name == "rank_0.json"
    blackbox.uninstall()
    blackbox.uninstall()
    assert state() == before, (state(), before)
os.unlink(os.path.join(sys.argv[1], "rank_0.json"))
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


def test_nothing_is_left_after_uninstall(tmp_path: Path) -> None:
    done = run_forked([sys.executable, "-c", ALONE, str(tmp_path)], timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("rank_*"))


def test_the_variable_and_the_module(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, phalanx\nfrom phalanx import blackbox\n"
        "assert blackbox.is_installed()\nassert sys.argv[1:] == ['a', '-b']\n"
    )
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    environ["PHALANX_BLACKBOX_DIR"] = str(tmp_path / "dumps")
    for command, more in (
        ([str(script)], {"PHALANX_BLACKBOX": "1"}),
        (["-m", "phalanx.blackbox", str(script)], {}),
    ):
        done = run_forked(
            [sys.executable, *command, "a", "-b"], env={**environ, **more}, timeout=50
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_wrong_options() -> None:
    from phalanx import UsageError, blackbox

    with pytest.raises(UsageError, match="hang"):
        blackbox.install("nowhere", hang=-1)
    with pytest.raises(UsageError, match="not installed"):
        blackbox.dump()


@pytest.mark.parametrize(
    "program",
    [
        """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1)
print("alive")
""",
        """
import os, signal, time
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(7)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
time.sleep(1)
print("alive")
""",
    ],
    ids=["a handler of its own", "a forked child"],
)
def test_signals_that_are_not_for_the_box(program: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(program)
    line = [sys.executable, "-m", "phalanx.blackbox", "--folder", str(tmp_path / "d"), "x.py"]
    done = run_forked(line, cwd=tmp_path, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "alive"
