"""`phalanx run --max-restarts`: a script starts again on all ranks, as under torchrun."""

from __future__ import annotations

import gc
import socket
import sys
import threading
from pathlib import Path

import pytest

from phalanx.cli.main import main
from tests.forked_programs import run_forked

TRAIN = """
import os, sys
import torch, torch.distributed as dist
import counter

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
most = os.environ["TORCHELASTIC_MAX_RESTARTS"]
dist.init_process_group("gloo")
rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
counter.count += 1
seen = store.get("attempts").decode() if store.check(["attempts"]) else "-"
dist.barrier()
if rank == 0:
    store.append("attempts", attempt)
print("attempt", attempt, "of", most, "module", counter.count, "store", seen)
total = torch.ones(1)
dist.all_reduce(total)
if rank == 2 and int(attempt) < int(sys.argv[1]):
    if sys.argv[2] == "raise":
        raise ValueError("lost batch")
    elif sys.argv[2] == "exit":
        sys.exit(3)
    elif sys.argv[2] == "stuck":
        dist.recv(total, 3)
    elif sys.argv[2] == "leave":
        os._exit(4)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "counter.py").write_text("count = 0\n")
    monkeypatch.chdir(tmp_path)

    def phalanx(line: str) -> tuple[int, str, str]:
        status = main(["run", *line.split()])
        done = capsys.readouterr()
        return status, done.out, done.err

    return phalanx


def test_all_ranks_start_again_with_new_modules_and_the_store_of_before(run) -> None:
    status, out, err = run("-n 4 --max-restarts 3 train.py 2 raise")
    assert status == 0
    assert out.splitlines() == [
        "[0-3] attempt 0 of 3 module 1 store -",
        "[0-3] attempt 1 of 3 module 1 store 0",
        "[0-3] attempt 2 of 3 module 1 store 01",
    ]
    assert err.count("RankFailedError: rank 2 raised ValueError: lost batch") == 2
    assert "phalanx: restart 1 of at most 3: all 4 ranks start again\n" in err
    assert err.endswith(
        "phalanx: 2 restarts of at most 3, because\n"
        "  1. rank 2 raised ValueError: lost batch (train.py:20)\n"
        "  2. rank 2 raised ValueError: lost batch (train.py:20)\n"
        "phalanx: 4 ranks, 3 collectives on 1 group checked: nothing found\n"
    )


@pytest.mark.parametrize(
    ("how", "why", "status"),
    [
        ("exit", "rank 2 raised SystemExit: 3 (train.py:22)", 1),
        ("leave", "rank 2 called os._exit with code 4 (train.py:26)", 1),
        ("stuck", "ranks 2 and 3 wait for each other; no rank can continue (train.py:24)", 3),
    ],
)
def test_whatever_ends_a_rank_starts_all_again(run, how: str, why: str, status: int) -> None:
    done, _, err = run(f"-n 4 --max-restarts 1 train.py 1 {how}")
    assert done == 0
    assert f"phalanx: 1 restart of at most 1, because {why}" in err
    assert run(f"-n 4 --max-restarts 1 train.py 9 {how}")[0] == status


def test_the_last_attempt_gives_the_exit_status(run) -> None:
    status, out, err = run("-n 4 --max-restarts 1 train.py 2 raise")
    assert status == 1
    assert len(out.splitlines()) == 2
    assert "  replay    phalanx run --ranks 4 --max-restarts 1 train.py 2 raise\n" in err
    assert "phalanx: 1 restart of at most 1, because rank 2 raised ValueError: lost" in err


def test_strict_does_not_forgive_what_a_restart_has_healed(run) -> None:
    assert run("-n 4 --max-restarts 1 --strict train.py 1 stuck")[0] == 3
    assert run("-n 4 --max-restarts 1 --strict train.py 1 raise")[0] == 0


def test_torchruns_spelling(run) -> None:
    assert run("-n 4 --max_restarts 1 -q train.py 1 raise")[0] == 0


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("-n 4 --max-restarts -1 train.py 0 x", "--max-restarts -1: give how often"),
        ("-n 4 --max-restarts x train.py 0 x", "--max-restarts x: a whole number is needed"),
        ("--max-restarts 1 train.py 0 x", "--max-restarts 1 without a number of ranks"),
        ("-n 4 --max-restarts 1 -m pytest", "--max-restarts 1 with pytest"),
        ("-n 1 --nnodes 3:2 train.py 0 x", "--nnodes 3:2: give the fewest nodes first"),
        ("-n 1 --nnodes 0:2 train.py 0 x", "--nnodes 0:2: at least 1 is needed"),
        ("-n 1 --nnodes x train.py 0 x", "--nnodes x: a whole number is needed"),
    ],
)
def test_what_cannot_be_is_refused(run, line: str, text: str) -> None:
    status, _, err = run(line)
    assert status == 2
    assert err.startswith(f"phalanx: {text}")


HOLDING = """
import os, socket, sys, threading
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    def again():
        raise RuntimeError(f"holds port {sys.argv[1]}")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        again()
dist.barrier()
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_of_an_attempt_that_failed_is_left(run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (tmp_path / "holding.py").write_text(HOLDING)
    before = threading.active_count()
    status, _, err = run(f"-n 2 --max-restarts 1 holding.py {port}")
    assert status == 0, err
    gc.collect()
    assert threading.active_count() == before
    socket.create_server(("127.0.0.1", port)).close()


SLEEPING = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
time.sleep(1000)
if dist.get_rank() == 0:
    print(round(time.monotonic(), -3))
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError
dist.barrier()
"""


def test_virtual_time_goes_on(run, tmp_path: Path) -> None:
    (tmp_path / "sleeping.py").write_text(SLEEPING)
    status, out, _ = run("-n 2 --clock virtual --max-restarts 1 sleeping.py")
    assert status == 0
    first, second = (float(line.split()[1]) for line in out.splitlines())
    assert second - first == pytest.approx(1000, abs=500)


def test_ranks_that_are_processes_start_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "counter.py").write_text("count = 0\n")
    line = "-n 3 --engine processes --max-restarts 2 train.py 1 raise"
    done = run_forked(
        [sys.executable, "-m", "phalanx", "run", *line.split()], cwd=tmp_path, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[0-2] attempt 0 of 2 module 1 store -",
        "[0-2] attempt 1 of 2 module 1 store -",
    ]
    assert "phalanx: 1 restart of at most 2, because rank 2 raised ValueError" in done.stderr
