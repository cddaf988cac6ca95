"""The referee over TCP: plain processes attach to it, as those of torchrun do."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import ExitStack

import pytest

import phalanx
from phalanx.engines.referee.referee_server import DIED, RefereeServer, _Caller
from phalanx.engines.remote import frames as wire
from phalanx.engines.remote.frames import Decoder, encode
from tests.forked_programs import start_forked

PROGRAM = """
import os, sys, torch, torch.distributed as dist
from phalanx.engines.remote.link import attach_tcp

rank, referee, store, token, what = sys.argv[1:]
rank = int(rank)
link = attach_tcp("127.0.0.1", int(referee), token=token, rank=rank)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{store}", rank=rank, world_size=2)
try:
    dist.all_reduce(torch.ones(2))
    if what == "mismatch":
        dist.all_reduce(torch.ones(2 + rank))
    if what == "fail" and rank == 1:
        raise ValueError("no data")
    if what == "die" and rank == 1:
        os._exit(7)
    if what == "early" and rank == 1:
        link.finished()
        sys.exit()
    dist.barrier()
except BaseException as error:
    if not isinstance(error, SystemExit):
        link.failed(error)
        print(type(error).__name__)
else:
    link.finished()
os._exit(0)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def server():
    made = RefereeServer(ranks=2, replay="torchrun train.py")
    yield made
    made.close()


def launch(server: RefereeServer, what: str) -> list[str]:
    store = free_port()
    given = [str(server.port), str(store), server.token, what]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                start_forked([sys.executable, "-c", PROGRAM, str(rank), *given])
            )
            for rank in range(2)
        ]
        return [rank.communicate(timeout=50)[0].strip() for rank in ranks]


@pytest.mark.slow
def test_a_program_without_mistakes(server) -> None:
    assert launch(server, "nothing") == ["", ""]
    assert server.error is None and server.failures == {}


def test_a_mismatch_is_raised_in_the_ranks_and_known_to_the_launcher(server) -> None:
    assert launch(server, "mismatch") == ["CollectiveMismatchError"] * 2
    assert isinstance(server.error, phalanx.CollectiveMismatchError)
    assert str(server.error).endswith("replay    torchrun train.py")
    assert server.failures[0].startswith("CollectiveMismatchError: ")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        pytest.param("fail", "ValueError: no data", marks=pytest.mark.slow),
        pytest.param("die", DIED, marks=pytest.mark.slow),
    ],
)
def test_a_failure_stops_the_others(server, what, why) -> None:
    assert launch(server, what)[0] == "RankStopped"
    assert server.failures[1] == why and next(iter(server.failures)) == 1
    assert server.failures.get(0) in (None, "RankStopped: ")
    (block,) = server.stopped
    assert block.ranks == (0,) and block.view.wait.op.name == "barrier"
    assert server.error is None


@pytest.mark.slow
def test_a_rank_that_returns_early(server) -> None:
    assert launch(server, "early")[0] == "DeadlockError"
    assert isinstance(server.error, phalanx.DeadlockError)


def say_hello(server: RefereeServer, token: str, *, rank: int = 0, generation: int = 0):
    caller = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    caller.sendall(encode(wire.HELLO, rank, generation, body=token.encode()))
    return caller


@pytest.mark.parametrize(("token", "rank"), [("wrong", 0), (None, 9)], ids=["token", "rank"])
def test_strangers_are_not_listened_to(server, token, rank) -> None:
    with say_hello(server, token or server.token, rank=rank) as caller:
        assert caller.recv(1) == b""


def test_what_is_no_frame_at_all_ends_the_connection(server) -> None:
    with say_hello(server, server.token) as caller:
        caller.sendall(encode(wire.FORM, number=1, body=b"not a pickle"))
        assert caller.recv(1) == b""


@pytest.mark.parametrize(
    "frame",
    [
        encode(wire.FORM, number=1, body=b"cno_such_module\nX\n."),
        encode(wire.LOG, body=b"12345"),
        encode(wire.ANNOUNCE, 1, 99),
    ],
    ids=["pickle", "numbers", "form"],
)
def test_what_the_desk_does_not_understand_ends_the_checks_of_all(server, frame) -> None:
    with say_hello(server, server.token, rank=1) as other:
        with say_hello(server, server.token) as caller:
            caller.sendall(frame)
            assert caller.recv(1) == b"" and other.recv(1) == b""
        assert server.trouble is not None and server.failures == {}
        with say_hello(server, server.token) as late:
            assert late.recv(1) == b""
        with say_hello(server, server.token, generation=1) as caller:
            caller.settimeout(0.2)
            with pytest.raises(TimeoutError):
                caller.recv(1)
            assert server.trouble is None


def test_who_was_hung_up_on_in_the_same_round_is_left_alone(server) -> None:
    near, far = socket.socketpair()
    with near, far:
        caller = _Caller(near)
        server._hang_up(caller)
        server._hang_up(caller)
        server._attend(caller)
        assert far.recv(1) == b"" and server.trouble is None


def test_little_is_read_of_who_has_not_said_hello(server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as caller:
        caller.sendall(b"\xff\xff\xff\xff" + bytes(26))
        assert caller.recv(1) == b""


def test_who_does_not_say_hello_is_sent_away(server, monkeypatch) -> None:
    monkeypatch.setattr("phalanx.engines.referee.referee_server.GREETING", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as caller:
        caller.sendall(b"\0\0")
        assert caller.recv(1) == b""


def test_a_hello_in_pieces(server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as caller:
        hello = encode(wire.HELLO, 1, body=server.token.encode())
        for byte in hello + encode(wire.FAILED, body=b"ValueError: no"):
            caller.sendall(bytes([byte]))
        deadline = time.monotonic() + 10
        while not server.failures and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.failures == {1: "ValueError: no"}


@pytest.mark.slow  # by the speed of the machine
def test_a_long_frame_takes_no_time() -> None:
    frame, piece = encode(wire.FORM, body=bytes(16 << 20)), 4096
    decoder, start = Decoder(), time.monotonic()
    found = []
    for at in range(0, len(frame), piece):
        found += decoder.feed(frame[at : at + piece])
    assert [len(each.body) for each in found] == [16 << 20]
    assert time.monotonic() - start < 2


def test_a_later_generation_begins_with_an_empty_desk(server) -> None:
    with say_hello(server, server.token, rank=1) as first:
        first.sendall(encode(wire.FAILED, body=b"ValueError: no"))
        deadline = time.monotonic() + 10
        while not server.failures and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.failures == {1: "ValueError: no"}
        with say_hello(server, server.token, rank=1, generation=1):
            while server.failures and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.generation == 1 and server.failures == {}
            with say_hello(server, server.token, rank=0, generation=0) as late:
                assert late.recv(1) == b""


@pytest.mark.parametrize("step", [1, 5, 14, 1000])
def test_frames_come_out_as_they_went_in(step) -> None:
    frames = [encode(wire.ANNOUNCE, 1, 2, 3), encode(wire.FORM, 4, 5, body=b"x" * 40)]
    data = b"".join(frames)
    decoder = Decoder()
    found = [
        frame
        for at in range(0, len(data), step)
        for frame in decoder.feed(data[at : at + step])
    ]
    assert list(map(wire.encoded, found)) == frames
