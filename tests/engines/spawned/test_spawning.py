"""Scripts that start their ranks themselves, as real processes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.emulation.children.spawn_rules import asked_place, asked_rank
from phalanx.engines.spawned.spawned_messages import (
    Joins,
    PhaseOver,
    ScriptEnd,
    SpawnBase,
    connect,
    listen,
    read_hello,
)
from tests.forked_programs import run_forked

SCRIPT = """
import os, sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, size, how, file):
    own = f"{file}{rank}" if how == "apart" else file
    dist.init_process_group("gloo", init_method="file://" + own, rank=rank, world_size=size)
    if how == "raise" and rank == 1:
        raise ValueError("bad batch")
    if how == "leave":
        dist.barrier()  # Gloo's own start fails if a rank ends while others connect to it
        if rank == 1:
            return
    if how == "mismatch" and rank == 1:
        dist.barrier()
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == 0:
        print("total", int(total), flush=True)
    dist.destroy_process_group()

def start(way, how):
    file = tempfile.mktemp()
    if way == "spawn":
        mp.spawn(work, (2, how, file), nprocs=2)
        return []
    others = [1] if way == "main" else [0, 1]
    context = mp.get_context("fork")
    children = [context.Process(target=work, args=(r, 2, how, file)) for r in others]
    for child in children: child.start()
    if way == "main":
        work(0, 2, how, file)
    for child in children: child.join()
    return [] if way == "blind" else [child.exitcode for child in children]

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    for way, how in (word.split("-") for word in sys.argv[1:]):
        print(way, start(way, how), flush=True)
"""


def run(
    folder: Path, *words: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "phalanx", "run", "--no-record", "--engine", "processes"]
    return run_forked([*command, *options, "script.py", *words], cwd=folder, timeout=110)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


CHECKED = "phalanx: 4 worlds of up to 2 ranks, 4 collectives on 4 groups checked: nothing found"


@pytest.mark.programs
@pytest.mark.timeout(120)
def test_every_way_to_start_ranks_is_checked_one_world_after_the_other(tmp_path: Path) -> None:
    done = run(tmp_path, "fork-good", "main-good", "spawn-good", "main-good")
    assert done.returncode == 0, done.stderr
    shown = ["fork [0, 0]", "main [0]", "spawn []", "main [0]"]
    lines = [line for each in shown for line in ("total 2", each)]
    assert done.stdout.splitlines() == lines
    assert done.stderr.splitlines() == [CHECKED]


@pytest.mark.programs
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("words", "headline"),
    [
        ("spawn-mismatch", "CollectiveMismatchError: rank 1 called barrier where rank 0"),
        ("main-mismatch", "CollectiveMismatchError: rank 1 called barrier where rank 0"),
        ("blind-leave", "DeadlockError: rank 1 returned"),
    ],
)
def test_what_is_found_is_told_once(tmp_path: Path, words: str, headline: str) -> None:
    done = run(tmp_path, words)
    assert done.returncode == 3
    assert sum(line.startswith(headline) for line in done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.programs
@pytest.mark.timeout(120)
def test_the_error_of_a_rank_is_the_one_that_the_script_finds(tmp_path: Path) -> None:
    done = run(tmp_path, "spawn-raise")
    assert done.returncode == 1
    assert "ValueError: bad batch" in done.stderr and "nothing found" not in done.stderr


@pytest.mark.programs
@pytest.mark.timeout(120)
def test_a_script_that_does_not_look_at_its_failed_ranks_does_not_pass(tmp_path: Path) -> None:
    done = run(tmp_path, "blind-raise")
    assert done.returncode == 1
    assert "RankFailedError: rank 1 raised ValueError: bad batch" in done.stderr
    done = run(tmp_path, "fork-raise")
    assert done.stdout.endswith(", 1]\n")
    assert done.returncode == 0 and "RankFailedError" not in done.stderr


LEAVES = """
import multiprocessing, sys, tempfile
from script import work

if __name__ == "__main__":
    kind, file = multiprocessing.get_context("fork").Process, tempfile.mktemp()
    children = [kind(target=work, args=(rank, 2, sys.argv[1], file)) for rank in (0, 1)]
    for child in children: child.start()
    for child in children: child.join()
    if "looks" in sys.argv: print([bool(child.exitcode) for child in children])
    sys.exit(0)
"""


@pytest.mark.programs
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("engine", "how", "status"),
    [("threads", "mismatch", 3), ("processes", "mismatch", 3), ("processes", "raise", 1)],
)
def test_leaving_by_sys_exit_does_not_make_failed_ranks_pass(
    tmp_path: Path, engine: str, how: str, status: int
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "leaves.py").write_text(LEAVES)
    command = [sys.executable, "-m", "phalanx", "run", "--no-record", "--engine", engine]
    for words, expected in (([], status), (["looks"], 0)):
        done = run_forked([*command, "leaves.py", how, *words], cwd=tmp_path, timeout=110)
        assert done.returncode == expected, done.stderr
        headline = "CollectiveMismatchError" if how == "mismatch" else "ValueError: bad batch"
        assert headline in done.stderr


@pytest.mark.programs
@pytest.mark.timeout(120)
def test_a_standstill_says_at_which_address_each_rank_waits(tmp_path: Path) -> None:
    done = run(tmp_path, "fork-apart", options=("--timeout", "2"))
    assert done.returncode == 3
    first, *rest = done.stderr[done.stderr.index("StallError") :].splitlines()
    assert re.fullmatch(r"StallError: no rank moved for 2(\.\d)? s", first)
    places = [line for line in rest if "init_process_group(file://" in line]
    assert [line.split()[1] for line in places] == ["0", "1"]
    assert places[0].split("(")[1] != places[1].split("(")[1]


WAITS = """
import os, sys, time
from script import start

if __name__ == "__main__":
    how, *before = sys.argv[1:]
    if before:
        start("fork", *before)
    if how == "computes":
        end = time.monotonic() + 4
        while time.monotonic() < end: sum(range(1000))
    elif how == "prints":
        for number in range(8): print(number, flush=True); time.sleep(0.5)
    else:
        if os.fork() == 0: how = "child"
        print(how, os.getpid(), flush=True)
        time.sleep(1000)
    start("fork", "good")
"""


@pytest.mark.programs
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("before", "goal"), [([], "start ranks"), (["good"], "end")])
def test_a_script_that_stands_still_without_ranks_ends(
    tmp_path: Path, before: list[str], goal: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "waits.py").write_text(WAITS)
    command = [sys.executable, "-m", "phalanx", "run", "--no-record", "--engine", "processes"]
    words = ["--timeout", "2", "waits.py", "sleeps", *before]
    done = run_forked([*command, *words], cwd=tmp_path, timeout=110)
    assert done.returncode == 3
    assert "StallError: no sign of life for " in done.stderr
    assert re.search(rf"waited for the script \(process \d+\) to {goal}\n", done.stderr)
    pids = re.findall(r"^(?:sleeps|child) (\d+)$", done.stdout, re.MULTILINE)
    assert len(pids) == 2
    assert not [each for each in pids if os.path.exists(f"/proc/{each}/exe")]


@pytest.mark.programs
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["computes", "prints"])
def test_a_script_that_computes_or_prints_before_its_ranks_is_alive(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "waits.py").write_text(WAITS)
    command = [sys.executable, "-m", "phalanx", "run", "--no-record", "--engine", "processes"]
    done = run_forked([*command, "--timeout", "2", "waits.py", how], cwd=tmp_path, timeout=110)
    assert done.returncode == 0, done.stderr


SUITE = """
import multiprocessing as mp
import pytest
from script import start

def test_good():
    assert start("fork", "good") == [0, 0]

def test_bad():
    assert start("fork", "mismatch") == [0, 0]

def test_left():
    assert start("main", "leave") == [0]
"""


@pytest.mark.programs
@pytest.mark.timeout(120)
def test_reports_of_a_suite_name_the_test_and_one_line_sums_up(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "phalanx", "run", "--no-record", "--engine", "processes"]
    done = run_forked(
        [*command, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=tmp_path,
        timeout=110,
    )
    assert done.returncode == 1, done.stdout
    assert "2 failed, 1 passed" in done.stdout
    told = [line.split() for line in done.stderr.splitlines() if line.startswith("  test ")]
    names = [["test", f"test_suite.py::{each}"] for each in ("test_bad", "test_left")]
    assert told == names, done.stderr
    summary = [line for line in done.stderr.splitlines() if line.startswith("phalanx:")]
    assert len(summary) == 1 and "3 worlds" in summary[0]
    assert summary[0].endswith("2 errors (1 deadlock, 1 mismatch)")


@pytest.mark.programs
@pytest.mark.timeout(120)
@pytest.mark.parametrize("engine", ["processes", "torchrun"])
def test_a_standstill_names_the_test(tmp_path: Path, engine: str) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import os, torch.distributed as dist\n"
        "def work(rank):\n"
        "    dist.init_process_group(rank=rank, world_size=2)\n"
        "    if rank: os.read(os.pipe()[0], 1)\n"
        "    dist.barrier()\n"
        "def test_still():\n"
        + (
            "    work(int(os.environ['RANK']))\n"
            if engine == "torchrun"
            else "    import torch.multiprocessing as mp\n"
            f"    os.environ['MASTER_PORT'] = '{free_port()}'\n"
            "    os.environ['MASTER_ADDR'] = '127.0.0.1'\n"
            "    mp.spawn(work, nprocs=2)\n"
        )
    )
    size = ["-n", "2"] if engine == "torchrun" else []
    command = [sys.executable, "-m", "phalanx", "run", "--no-record", "--engine", engine]
    options = [*size, "--timeout", "3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = run_forked([*command, *options], cwd=tmp_path, timeout=110)
    assert done.returncode == 3, done.stderr
    headline, rest = done.stderr[done.stderr.index("StallError") :].split("\n\n", 1)
    assert headline.startswith("StallError: no rank moved for 3")
    assert rest.split("\n", 1)[0].split() == ["test", "test_suite.py::test_still"]


def test_output_of_single_ranks_cannot_be_chosen(tmp_path: Path) -> None:
    done = run(tmp_path, options=("--rank", "0"))
    assert done.returncode == 2 and "--rank without -n" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"[" * 990,
        b'{"token": "\\ud800", "kind": "Joins"}',
        b'{"token": "secret"}',
        b'{"token": "secret", "kind": "Joins", "body": {"rank": [], "size": 1}}',
        b'{"token": "secret", "kind": "PhaseOver", "body": {"passed": 1, "looked_at": "x"}}',
        b'{"token": "other", "kind": "ScriptEnd", "body": {"how": "end", "text": ""}}',
        b"\xff\xfe",
    ],
)
def test_a_first_line_that_cannot_be_read_is_refused(line: bytes) -> None:
    assert read_hello(line, "secret") is None


def test_a_first_line_says_who_is_there() -> None:
    base = SpawnBase(f"phalanx-test-{os.getpid()}", "secret", "all")
    with listen(base.address) as listener:
        for message in (
            Joins(1, 2, "tcp://host:1", (3, 4)),
            ScriptEnd("exit", "text", (5,)),
            PhaseOver(True, (6, 7)),
        ):
            with connect(base, message) as caller:
                caller.shutdown(socket.SHUT_WR)
                end, _ = listener.accept()
                with end:
                    line = end.recv(4096)
            assert read_hello(line, "secret") == message
            assert json.loads(line)["token"] == "secret"


@pytest.mark.parametrize(
    ("given", "rank", "place"),
    [
        ({"rank": 1, "init_method": "tcp://h:2"}, 1, "tcp://h:2"),
        ({"init_method": "file:///tmp/x?rank=3"}, 3, "file:///tmp/x"),
        ({}, 2, "tcp://host:29"),
    ],
)
def test_where_a_call_says_who_meets_where(
    given: dict[str, object], rank: int, place: str
) -> None:
    environ = {"RANK": "2", "MASTER_ADDR": "host", "MASTER_PORT": "29"}
    assert (asked_rank(given, environ), asked_place(given, environ)) == (rank, place)
