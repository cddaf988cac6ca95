"""What is done to real TCP sockets and stores, all of them in this process."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from phalanx.engines.real_faults import cut_traffic, sockets_of_ranks
from phalanx.engines.real_faults.cut_traffic import CutTraffic, end_connections
from phalanx.engines.real_faults.sockets_of_ranks import ends_of, own_end, own_sockets
from phalanx.engines.real_faults.unserved_stores import UnservedStores

SOON = 0.2
LONG = 20.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=LONG)
        far, _ = listener.accept()
        far.settimeout(LONG)
        with near, far:
            yield near, far


def test_the_ends_of_a_process_are_found(pair):
    near, far = pair
    ends = ends_of([os.getpid()])
    assert {own_end(near), own_end(far)} <= ends
    assert ends_of([]) == set()


def test_what_is_sent_over_a_cut_connection_arrives_when_it_is_joined(pair):
    near, far = pair
    traffic = CutTraffic()
    traffic.cut(1, [os.getpid()])
    near.sendall(b"late")
    far.settimeout(SOON)
    with pytest.raises(TimeoutError):
        far.recv(4)
    traffic.join(1)
    far.settimeout(LONG)
    assert far.recv(4) == b"late"


def test_a_connection_that_two_cuts_concern_is_joined_with_the_last(pair):
    near, far = pair
    traffic = CutTraffic()
    traffic.cut(1, [os.getpid()])
    traffic.cut(2, [os.getpid()])
    traffic.join(1)
    near.sendall(b"late")
    far.settimeout(SOON)
    with pytest.raises(TimeoutError):
        far.recv(4)
    traffic.join(2)
    far.settimeout(LONG)
    assert far.recv(4) == b"late"


def test_a_connection_to_nobody_who_is_cut_off_stays(pair):
    near, far = pair
    traffic = CutTraffic()
    traffic.cut(1, [])
    near.sendall(b"soon")
    assert far.recv(4) == b"soon"
    traffic.join(1)


def test_connections_end_but_for_those_that_are_kept(pair):
    near, far = pair
    end_connections({near.getsockname()[1]})
    near.sendall(b"kept")
    assert far.recv(4) == b"kept"
    end_connections(())
    assert far.recv(4) == b""


def client(port: int) -> dist.TCPStore:
    limit = timedelta(seconds=LONG)
    return dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)


def test_a_store_loses_its_server_and_is_empty_afterwards():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    user = client(server.port)
    user.set("key", "value")
    stores = UnservedStores()
    assert not stores.lose({1})
    assert stores.lose({server.port, 1})
    with pytest.raises(dist.DistNetworkError):
        user.get("key")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=LONG)
    stores.serve_again()
    assert not client(server.port).check(["key"])
    with pytest.raises(dist.DistNetworkError):
        user.get("key")


def test_a_number_that_is_that_of_a_file_by_now_leaves_nothing_open(monkeypatch, tmp_path):
    with open(tmp_path / "file", "w") as file:
        monkeypatch.setattr(
            sockets_of_ranks, "_is_socket", lambda number: number == file.fileno()
        )
        before = os.listdir("/proc/self/fd")
        assert list(own_sockets()) == []
        assert os.listdir("/proc/self/fd") == before


def test_a_connection_is_cut_although_a_look_has_failed(pair, monkeypatch):
    looks = []

    def ends_of(pids):
        looks.append(pids)
        if len(looks) == 2:  # the first in the thread that watches
            raise OSError(errno.EMFILE, "Too many open files")
        return set()

    monkeypatch.setattr(cut_traffic, "ends_of", ends_of)
    traffic = CutTraffic()
    traffic.cut(1, [1])
    try:
        until = time.monotonic() + 20
        while len(looks) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(looks) >= 4
    finally:
        traffic.join_all()
