"""The torchrun engine on one machine: torch's own launcher, our output, checks and reports."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = {
    "ends.py": """
        import os, sys, time
        import torch, torch.distributed as dist

        how = sys.argv[1]
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        print("begin", os.getpid() if how == "sleep" else how, flush=True)
        dist.barrier()

        def step():
            if how == "raise" and rank == 1:
                raise ValueError("bad batch")
            if how == "exit" and rank == 1:
                sys.exit("no data")
            if how == "die" and rank == 1:
                print("last words", file=sys.stderr)
                os.kill(os.getpid(), 9)
            first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            if how == "restart" and rank == 1 and first:
                raise ValueError("once")
            if how == "sleep":
                time.sleep(60)
            if how == "steps":
                for number in range(8):
                    time.sleep(0.5)
                    dist.barrier()
            if how == "loop" and rank == 1:
                while True:
                    pass
            if how == "mismatch" and rank == 1:
                dist.barrier()
            elif how == "deadlock":
                dist.recv(torch.ones(3), src=1 - rank)
            elif how == "drop":
                dist.all_reduce(torch.ones(4), async_op=True)
                dist.barrier()
            else:
                dist.all_reduce(torch.ones(4))

        step()
        print("end of", how)
        """,
    "leaves.py": """
        import os, sys, time
        import torch, torch.distributed as dist

        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        if sys.argv[1] == "exit":
            print("leaves", flush=True)
            os._exit(0)
        # What a trainer does about Ctrl-C; rank 1 waits for rank 0 in native code.
        try:
            if dist.get_rank() == 0:
                print("ready", flush=True)
                time.sleep(60)
            dist.recv(torch.ones(1), src=0)
        except KeyboardInterrupt:
            print("saved", flush=True)
            raise
        finally:
            print("cleaned up", flush=True)
        """,
    "groups.py": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        for _ in range(3):
            group = dist.new_group([0, 1])
            dist.all_reduce(torch.ones(1), group=group)
        if dist.get_rank() == 0:
            dist.destroy_process_group()
        """,
    "alone.py": "print('hello')\n",
    "package/__init__.py": "",
    "package/train.py": """
        import sys
        import torch.distributed as dist
        dist.init_process_group("gloo")
        print(__spec__.name, __package__, *sys.argv[1:])
        """,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    for name, source in SCRIPTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(source))
    return folder


@dataclass
class Answer:
    status: int
    out: str
    err: str


@pytest.fixture
def phalanx(folder):
    def run(line: str, **environ: str) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", "run", "--engine", "torchrun", *line.split()],
            cwd=folder,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=55,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


def started(line: str, folder: Path, engine: str = "torchrun") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", "--engine", engine, *line.split()],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def sleeping(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A launcher whose ranks sleep, and the process numbers of these."""
    launcher = started("-n 2 ends.py sleep", folder)
    try:
        assert launcher.stdout is not None
        pids = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
        yield launcher, pids
    finally:
        launcher.kill()
        launcher.communicate(timeout=20)


def all_end(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.1)
    return False


# -- programs -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_that_is_right(phalanx) -> None:
    done = phalanx("-n 2 ends.py well")
    closing = "phalanx: 2 ranks, 2 collectives on 1 group checked: nothing found\n"
    assert (done.status, done.err) == (0, closing)
    assert done.out == "[0-1] begin well\n[0-1] end of well\n"


@pytest.mark.slow
def test_warnings_are_told_and_fail_the_run_if_strict(phalanx) -> None:
    done = phalanx("-n 2 --strict ends.py drop")
    assert done.status == 3
    headline = "HazardError: [unwaited-work]: ranks 0, 1 never waited for all_reduce"
    assert done.err.startswith(f"{headline} at ends.py:36\n")
    assert done.err.endswith("checked: 1 warning (1 unwaited-work)\n")


@pytest.mark.slow
def test_kinds_can_be_left_out(phalanx) -> None:
    done = phalanx("-n 2 --strict --checks all,-unwaited-work ends.py drop")
    assert (done.status, done.err.count("\n")) == (0, 1)
    assert done.err.endswith("checked (not for unwaited-work): nothing found\n")


def test_a_mismatch_is_found_as_with_threads(phalanx) -> None:
    done = phalanx("-n 2 ends.py mismatch")
    assert done.status == 3
    assert done.err.startswith(
        "CollectiveMismatchError: rank 0 called all_reduce where rank 1 called barrier\n"
    )
    assert "           ends.py:32 in step\n           >  dist.barrier()\n" in done.err
    assert "replay    phalanx run --ranks 2 --engine torchrun ends.py mismatch" in done.err


@pytest.mark.slow
def test_a_rank_that_dies_is_named_with_its_last_words(phalanx) -> None:
    done = phalanx("-n 2 ends.py die")
    assert done.status == 1
    assert done.err.startswith("[1]   last words\nRankFailedError: rank 1 died of SIGKILL\n")
    assert "\n           last words\n" in done.err
    assert "stopped   rank 0 in all_reduce(op=SUM) (call #1) at ends.py:39" in done.err
    assert "torch/distributed" not in done.err and "ChildFailedError" not in done.err


@pytest.mark.slow
def test_a_deadlock_is_proved(phalanx) -> None:
    done = phalanx("-n 2 ends.py deadlock")
    assert done.status == 3
    assert done.err.startswith("DeadlockError: ranks 0 and 1 wait for each other;")


@pytest.mark.slow
def test_an_exception_is_shown_with_its_traceback(phalanx) -> None:
    done = phalanx("-n 2 ends.py raise")
    assert done.status == 1
    assert done.err.startswith("Traceback (most recent call last):\n  File ")
    assert "\nRankFailedError: rank 1 raised ValueError: bad batch\n" in done.err
    assert "phalanx/running" not in done.err and "runpy" not in done.err


@pytest.mark.slow
def test_sys_exit_with_a_reason(phalanx) -> None:
    done = phalanx("-n 2 ends.py exit")
    assert done.status == 1
    assert done.err.startswith("RankFailedError: rank 1 raised SystemExit: no data\n")


@pytest.mark.slow
def test_a_module_and_its_arguments(phalanx) -> None:
    done = phalanx("-n 2 -m package.train --lr 1")
    assert (done.status, done.out) == (0, "[0-1] package.train package --lr 1\n")


@pytest.mark.slow
def test_groups_and_a_world_that_are_left_standing_are_told(phalanx) -> None:
    done = phalanx("-n 2 groups.py")
    assert done.status == 0
    assert "warning [leak]: groups.py:5 made a group of the same ranks 3 times" in done.err
    assert "warning [leak]: rank 1 ended without destroy_process_group" in done.err
    assert done.err.endswith("on 3 groups checked: 2 warnings (2 leak)\n")


@pytest.mark.slow
def test_without_checks_nothing_is_compared(phalanx) -> None:
    done = phalanx("-n 2 --checks none --timeout 3 ends.py deadlock")
    assert done.status == 3
    assert done.err.startswith("StallError: ")
    assert "dist.recv(torch.ones(3), src=1 - rank)" in done.err


@pytest.mark.slow
def test_a_rank_that_computes_for_ever_is_a_stall(phalanx) -> None:
    done = phalanx("-n 2 --timeout 3 ends.py loop")
    assert done.status == 3
    assert done.err.startswith("StallError: no rank moved for 3")
    assert "rank 1   outside Phalanx's sight\n           ends.py:29 in step" in done.err
    assert "needs rank 1, which is outside Phalanx's sight" in done.err


@pytest.mark.slow
def test_ranks_that_call_do_not_stall(phalanx) -> None:
    done = phalanx("-n 2 --timeout 3 ends.py steps")
    assert done.status == 0 and done.err.endswith("checked: nothing found\n")
    assert done.out == "[0-1] begin steps\n[0-1] end of steps\n"


@pytest.mark.slow
def test_a_restart_tells_why_and_can_succeed(phalanx) -> None:
    done = phalanx("-n 2 --max-restarts 1 ends.py restart")
    assert done.status == 0
    assert done.err.startswith("RankFailedError: rank 1 raised ValueError: once\n")
    assert "torch's launcher starts the ranks again\nphalanx: 2 ranks, " in done.err
    assert done.out.endswith("[0-1] begin restart\n[0-1] end of restart\n")


@pytest.mark.slow
def test_a_script_without_a_group_is_pointed_out(phalanx) -> None:
    done = phalanx("-n 2 alone.py")
    assert done.status == 2
    assert "alone.py ended without a call of init_process_group" in done.err


@pytest.mark.slow
def test_logs_are_torchs_own_if_asked_for(phalanx, tmp_path) -> None:
    done = phalanx(f"-n 2 --log-dir {tmp_path} --redirects 3 ends.py well")
    assert (done.status, done.out) == (0, "")
    logs = sorted(tmp_path.rglob("stdout.log"))
    assert [log.read_text() for log in logs] == ["begin well\nend of well\n"] * 2


@pytest.mark.slow
def test_a_fixed_address_and_port(phalanx) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    line = f"-n 2 --nnodes 1 --node-rank 0 --master-addr 127.0.0.1 --master-port {port}"
    done = phalanx(f"{line} ends.py mismatch")
    assert done.status == 3, done.err


@pytest.mark.slow
def test_what_torchs_launcher_refuses_is_one_line(phalanx) -> None:
    done = phalanx("-n 2 --max-restarts x ends.py well")
    assert done.status == 2
    assert done.err.startswith("phalanx: --max-restarts x: a whole number is needed")
    done = phalanx("-n 2 --monitor-interval x ends.py well")
    assert done.status == 2
    assert done.err == (
        "phalanx: torch's launcher: argument --monitor-interval/--monitor_interval: "
        "invalid float value: 'x'\n"
    )


@pytest.mark.slow
def test_one_machine_needs_no_store_of_torchs_launcher(phalanx) -> None:
    done = phalanx("-n 2 ends.py well", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert (done.status, done.out) == (0, "[0-1] begin well\n[0-1] end of well\n")
    assert "no checks" not in done.err and "nothing found" in done.err


# -- the end ------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupt_says_where_the_ranks_were_and_ends_them(folder) -> None:
    with sleeping(folder) as (launcher, pids):
        launcher.send_signal(signal.SIGINT)
        _, err = launcher.communicate(timeout=30)
        assert launcher.returncode == 130
        assert err.startswith("interrupted; each rank of this machine was at\n")
        assert "time.sleep(60)" in err and "SIGTERM" not in err
        assert all_end(pids)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "torchrun"])
def test_an_interrupt_is_for_the_program_as_well(folder, engine: str) -> None:
    launcher = started("-n 2 leaves.py save", folder, engine)
    try:
        assert launcher.stdout is not None
        lines = iter(launcher.stdout.readline, "")
        assert any("ready" in line for line in lines)
        time.sleep(0.5)  # for rank 1 to wait
        launcher.send_signal(signal.SIGINT)
        out, err = launcher.communicate(timeout=30)
    finally:
        launcher.kill()
    told = sorted(line.split("] ")[1] for line in out.splitlines())
    assert "[0] saved" in out.replace("   ", " ") or "[0-1] saved" in out
    assert told in (["cleaned up", "saved"], ["cleaned up"] * 2 + ["saved"] * 2), out + err
    assert launcher.returncode == 130 and "each rank" in err


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "torchrun"])
def test_ranks_that_leave_by_os_exit_have_not_failed(folder, engine: str) -> None:
    launcher = started("-n 2 leaves.py exit", folder, engine)
    out, err = launcher.communicate(timeout=50)
    assert (launcher.returncode, out) == (0, "[0-1] leaves\n"), err
    assert "nothing found" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_launcher(folder, number) -> None:
    with sleeping(folder) as (launcher, pids):
        launcher.send_signal(number)
        launcher.wait(timeout=30)
        assert all_end(pids)


@pytest.mark.slow
def test_the_end_of_torchs_launcher_is_told_and_ends_the_ranks(folder) -> None:
    with sleeping(folder) as (launcher, pids):
        status = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(status[1]), signal.SIGKILL)  # the parent of the ranks
        _, err = launcher.communicate(timeout=30)
        assert launcher.returncode == 1
        assert err.startswith("RankFailedError: torch's launcher died of SIGKILL")
        assert all_end(pids)


@pytest.mark.slow
def test_who_waits_for_other_machines_is_told_so(folder) -> None:
    launcher = started("-n 1 --nnodes 2 --rdzv-endpoint 127.0.0.1:29643 ends.py well", folder)
    try:
        assert launcher.stderr is not None
        assert launcher.stderr.readline() == (
            "phalanx: still waiting for the other machines (2 in all) at 127.0.0.1:29643\n"
        )
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=30)
        assert launcher.returncode == 130
    finally:
        launcher.kill()


# -- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("-n 2 --seed 3 ends.py", "--seed 3: the system decides which process runs when"),
        ("-n 2 --clock virtual ends.py", "--clock virtual: real processes have the real clock"),
        ("ends.py", "say how many ranks to run on each machine"),
        ("-n some ends.py", "-n some: give the number of ranks on each machine"),
        ("-n 2 --nnodes x ends.py", "--nnodes x: give the number of machines"),
        ("-n 2 --nnodes 2 ends.py", "several machines need to know where to meet"),
        ("-n 2 --checks some ends.py", "--checks some: there is no kind 'some'"),
        ("-n 2 nowhere.py", "no such script: 'nowhere.py'"),
    ],
)
def test_what_cannot_work_is_refused(line, text, folder, monkeypatch, capsys) -> None:
    from phalanx.cli.main import main

    monkeypatch.chdir(folder)
    assert main(["run", "--engine", "torchrun", *line.split()]) == 2
    assert re.match(f"phalanx: {re.escape(text)}", capsys.readouterr().err)


PAIR = """
import sys
import time
import torch.distributed as dist

dist.init_process_group("gloo")
if sys.argv[1] == "hangs" and dist.get_rank() == 1:
    time.sleep(50)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("passes", 0), ("hangs", 3)])
def test_two_launchers_on_one_machine(tmp_path: Path, how: str, code: int) -> None:
    """They meet, and agree about how it ended, also where only one of them found it."""
    script = tmp_path / "pair.py"
    script.write_text(PAIR)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = "-m phalanx run --engine torchrun --nnodes 2 -n 1 --timeout 5 --rdzv-endpoint"
    both = [
        subprocess.Popen(
            [sys.executable, *line.split(), f"127.0.0.1:{port}", str(script), how],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    told = [each.communicate(timeout=80)[0] for each in both]
    assert [each.returncode for each in both] == [code, code], "\n".join(told)
    assert all(("StallError" in text) == (how == "hangs") for text in told), told
