"""Who can reach torch's store, and is none of the run."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from phalanx.engines.remote import frames
from phalanx.engines.remote.frames import encode

HELD = """
import os, time
from pathlib import Path
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
if dist.get_rank() == 0:
    Path("port.new").write_text(os.environ["MASTER_PORT"])
    os.rename("port.new", "port")
while not os.path.exists("attacked"):
    time.sleep(0.05)
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""

KEY = "0123456789abcdef"


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.system, (f"touch {self.path}",)


@contextmanager
def held(folder: Path, machines: int, key: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Launchers whose ranks wait until the folder has a file `attacked`."""
    (folder / "held.py").write_text(HELD)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = ["-m", "phalanx", "run", "--engine", "torchrun", "-n", "2", "--checks", "all"]
    if machines > 1:
        line += ["--nnodes", str(machines), "--rdzv-endpoint", f"127.0.0.1:{port}"]
    started = [
        subprocess.Popen(
            [sys.executable, *line, "held.py"],
            cwd=folder,
            env={**os.environ, "PHALANX_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(machines)
    ]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def store_of(folder: Path, launchers: list[subprocess.Popen[str]]) -> dist.TCPStore:
    """That of torch's launcher, as anybody opens it."""
    while not (folder / "port").exists():
        assert all(each.poll() is None for each in launchers), launchers[0].communicate()[0]
        time.sleep(0.05)
    port = int((folder / "port").read_text())
    return dist.TCPStore("localhost", port, timeout=timedelta(seconds=10))


def offers_in(store: dist.TCPStore) -> list[str]:
    names = [name for name in store.list_keys() if "referee" in name]
    return [store.get(name.partition("/")[2] or name).decode() for name in names]


def attack(offer: str, path: Path) -> bytes:
    """What the referee answers to a rank's hello, as far as the offer allows, and a pickle."""
    port, _, word = offer.split()
    with socket.create_connection(("localhost", int(port)), timeout=10) as end:
        end.sendall(encode(frames.HELLO, 3, body=word.encode()))
        end.sendall(encode(frames.FORM, body=pickle.dumps(Attack(path))))
        try:
            return end.recv(100)
        except ConnectionResetError:
            return b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machines", "key"), [(1, ""), (2, ""), (2, KEY)], ids=["alone", "open", "keyed"]
)
def test_who_reads_torchs_store_can_run_nothing(tmp_path: Path, machines, key) -> None:
    with held(tmp_path, machines, key) as launchers:
        store = store_of(tmp_path, launchers)
        offers = offers_in(store)
        assert len(offers) == machines - 1
        for offer in offers:
            assert attack(offer, tmp_path / "run") == b""
        (tmp_path / "attacked").touch()
        told = [each.communicate(timeout=50)[0] for each in launchers]
        assert [each.returncode for each in launchers] == [0] * machines, told
    assert not (tmp_path / "run").exists()
    assert any("2 collectives on 1 group checked: nothing found" in each for each in told), told
