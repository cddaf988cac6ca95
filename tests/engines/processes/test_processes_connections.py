"""How ranks that are processes connect: seldom, without a name server, and together."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_group

import phalanx
from phalanx.backend.torch_private import private
from phalanx.backend.torch_private.private_lookups import (
    _log_level,
    _resolver_here,
    without_name_servers,
)
from phalanx.engines.processes import group_rendezvous

GLOO: dict[str, Any] = {"ranks": 2, "engine": "processes", "backend": "gloo"}


def count_connections() -> int:
    made, original = [], group_rendezvous.TCPStore
    group_rendezvous.TCPStore = lambda *args, **named: (  # type: ignore[assignment, misc]
        made.append(args) or original(*args, **named)
    )
    for _ in range(5):
        dist.init_process_group("gloo")
        dist.destroy_process_group()
    group_rendezvous.TCPStore = original  # type: ignore[misc]
    return len(made)


def test_groups_one_after_another_have_one_connection() -> None:
    rank_0, rank_1 = phalanx.run(count_connections, init=False, **GLOO)
    assert (rank_0, rank_1) == (2, 1)  # rank 0 also serves what env:// promises


def others_are_connected() -> list[bool]:
    found = []
    for _ in range(20):
        dist.init_process_group("gloo")
        store = private.store_of(_get_default_group())
        found.append(store.check([f"phalanx: connected {rank}" for rank in range(2)]))
        dist.destroy_process_group()
    return found


@pytest.mark.parametrize("checks", ["all", "none"])
def test_who_leaves_init_knows_that_all_are_connected(checks) -> None:
    found = phalanx.run(others_are_connected, init=False, checks=checks, **GLOO)
    assert found == [[True] * 20] * 2


def test_a_thread_that_connects_asks_no_name_server() -> None:
    here, level = _resolver_here(), _log_level()
    before = here.servers, level.value
    elsewhere: list[int] = []
    with without_name_servers():
        assert here.servers == 0 and level.value >= 2
        other = threading.Thread(target=lambda: elsewhere.append(_resolver_here().servers))
        other.start()
        other.join()
    assert (here.servers, level.value) == before
    assert elsewhere == [before[0]]


def test_another_c_library_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda path: object())
    with without_name_servers():
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


SILENT = """\
import socket, subprocess, sys, threading
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.53", 53))
asked = []
def hear():
    while True:
        asked.append(server.recv(512))
threading.Thread(target=hear, daemon=True).start()
status = subprocess.call(sys.argv[1:])
print("questions", len(asked), "status", status)
"""
PROGRAM = """\
import torch.distributed as dist
for _ in range(3):
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.programs
@pytest.mark.slow
def test_below_a_name_server_that_never_answers(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.call([unshare, "-n", "-m", "true"]) != 0:
        pytest.skip("may not make a network namespace")
    (tmp_path / "silent.py").write_text(SILENT)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "silent.conf").write_text("nameserver 127.0.0.53\n")
    run = f"{sys.executable} -m phalanx run --engine processes -n 2 program.py"
    steps = (
        "ip link set lo up",
        "mount --bind silent.conf /etc/resolv.conf",
        f"exec {sys.executable} silent.py {run}",
    )
    done = subprocess.run(
        [unshare, "-n", "-m", "sh", "-c", " && ".join(steps)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
    )
    assert done.stdout.endswith("questions 0 status 0\n"), done.stdout + done.stderr
    assert "hostname" not in done.stderr


def all_reduced() -> float:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def test_a_group_of_the_engine_works_over_that_connection() -> None:
    with phalanx.World(**GLOO) as world:
        assert [world.run(all_reduced) for _ in range(2)] == [[2.0, 2.0]] * 2


def leave_a_model_behind() -> None:
    """The group has been destroyed when the model goes, and its last `Work` perhaps not yet."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 1))
    model(torch.ones(4, 6)).sum().backward()
    dist.all_gather([torch.empty(1) for _ in range(2)], torch.ones(1))
    dist.destroy_process_group()


@pytest.mark.parametrize("checks", ["all", "none"])
def test_a_model_may_outlive_its_group(checks) -> None:
    with phalanx.World(init=False, timeout=20.0, checks=checks, **GLOO) as world:
        for _ in range(20):
            world.run(leave_a_model_behind)
