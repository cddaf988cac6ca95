"""Programs that make groups of themselves alone, beside the worlds that they start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from phalanx.emulation.children.spawn_rules import asked_size
from phalanx.errors import CollectiveMismatchError, UsageError
from tests.emulation.children.test_children import HEAD, launch_text
from tests.forked_programs import run_forked

ALONE = """
import socket, tempfile

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

def work(rank, size):
    init(rank, size)
    total = torch.ones(1)
    dist.all_reduce(total)
    print("spawned", int(total), flush=True) if rank == 0 else None
    dist.destroy_process_group()

def alone(**how):
    dist.init_process_group("gloo", **how)
    gathered = [None]
    dist.all_gather_object(gathered, os.getpid())
    dist.barrier()
    print("alone", dist.get_rank(), dist.get_world_size(), gathered == [os.getpid()])
    dist.destroy_process_group()

def pair(rank):
    return mp.get_context("spawn").Process(target=work, args=(rank, 2))
"""


def test_a_program_is_alone_before_between_and_after_worlds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if __name__ == "__main__":
    alone(rank=0, world_size=1, init_method=f"tcp://0.0.0.0:{free_port()}")
    mp.spawn(work, (2,), nprocs=2)
    alone(rank=0, world_size=1, init_method="file://" + tempfile.mktemp())
    alone(init_method=f"tcp://127.0.0.1:{free_port()}?rank=0&world_size=1")
    alone(store=dist.HashStore(), rank=0, world_size=1)
    children = [pair(0), pair(1)]
    for child in children: child.start()
    for child in children: child.join()
    port = str(free_port())
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port, RANK="0", WORLD_SIZE="1")
    alone()
"""
    found = launch_text(tmp_path, ALONE + text)
    assert found.error is None and [world.error for world in found.worlds] == [None, None]
    own, spawned = "alone 0 1 True", "spawned 2"
    assert capsys.readouterr().out.splitlines() == [own, spawned, own, own, own, spawned, own]
    assert found.worlds_of_one == 5 and not dist.is_initialized()


def test_a_group_of_the_program_alone_stays_while_worlds_come_and_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    own = dist.new_group([0])
    for _ in range(2):
        mp.spawn(work, (2,), nprocs=2)
        dist.barrier(own)
        print("alone", dist.get_world_size(), dist.get_world_size(own))
    child = pair(1)
    child.start()
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2)
    except ValueError as error:
        print("twice" in str(error))
    dist.destroy_process_group()
    work(0, 2)
    child.join()
    alone(store=dist.HashStore(), rank=0, world_size=1)
    mp.spawn(work, (2,), nprocs=2)
"""
    found = launch_text(tmp_path, ALONE + text)
    assert found.error is None and [world.error for world in found.worlds] == [None] * 4
    assert capsys.readouterr().out.splitlines() == [
        *["spawned 2", "alone 1 1"] * 2,
        "True",
        "spawned 2",
        "alone 0 1 True",
        "spawned 2",
    ]


def test_worlds_beside_a_group_of_one_are_checked(tmp_path: Path) -> None:
    text = """
def fail(rank):
    init(rank, 2)
    dist.barrier() if rank else dist.all_reduce(torch.ones(2))

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mp.spawn(fail, nprocs=2)
    finally:
        dist.destroy_process_group()
"""
    (world,) = launch_text(tmp_path, text).worlds
    assert isinstance(world.error, CollectiveMismatchError)


def test_more_ranks_than_the_program_are_still_asked_for(tmp_path: Path) -> None:
    found = launch_text(tmp_path, "init(0, 2)")
    assert isinstance(found.error, UsageError) and "-n 4" in str(found.error)


@pytest.mark.parametrize(
    ("given", "environ", "size"),
    [
        ({"world_size": 3, "init_method": "tcp://h:1?world_size=1"}, {"WORLD_SIZE": "1"}, 3),
        ({"init_method": "tcp://h:1?rank=0&world_size=2"}, {"WORLD_SIZE": "1"}, 2),
        ({"init_method": "file:///tmp/x"}, {"WORLD_SIZE": "1"}, -1),
        ({"store": object()}, {"WORLD_SIZE": "1"}, -1),
        ({"init_method": "env://?world_size=4"}, {"WORLD_SIZE": "1"}, 4),
        ({}, {"WORLD_SIZE": "1"}, 1),
        ({}, {}, -1),
    ],
)
def test_what_says_how_many_ranks_a_group_has(
    given: dict[str, object], environ: dict[str, str], size: int
) -> None:
    assert asked_size(given, environ) == size


SUITE = """
import os, socket, tempfile
import pytest, torch
import torch.distributed as dist, torch.multiprocessing as mp

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

@pytest.fixture
def single_node():
    address = f"tcp://0.0.0.0:{free_port()}"
    dist.init_process_group("gloo", init_method=address, world_size=1, rank=0)
    yield {"rank": dist.get_rank()}
    dist.barrier()
    dist.destroy_process_group()

def check(rank, size, file):
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == size
    dist.destroy_process_group()

def test_alone(single_node):
    check_tensor = torch.ones(2)
    dist.all_reduce(check_tensor)
    assert check_tensor.tolist() == [1, 1]

@pytest.mark.parametrize("size", [1, 2])
def test_spawned(size, tmp_path):
    mp.spawn(check, (size, str(tmp_path / "store")), nprocs=size)

def test_beside(single_node, tmp_path):
    mp.spawn(check, (2, str(tmp_path / "store")), nprocs=2)

def test_called(tmp_path):
    check(0, 1, str(tmp_path / "store"))
    assert not dist.is_initialized()

def test_alone_again(single_node):
    assert dist.is_initialized()
"""


@pytest.mark.programs
def test_a_suite_with_groups_of_one_in_the_process_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "phalanx", "run", "-m", "pytest", "-q", "test_suite.py"]
    done = run_forked(command, cwd=tmp_path, timeout=55, merged=True)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout


@pytest.mark.programs
def test_a_program_that_is_only_alone_is_told_how_to_be_checked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        HEAD + "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
    )
    command = [sys.executable, "-m", "phalanx", "run", "script.py"]
    done = run_forked(command, cwd=tmp_path, timeout=55, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "phalanx: the program was a world of one on torch's own backend, and not checked; "
        "checked as a rank: phalanx run --ranks 1 script.py\n"
    )
