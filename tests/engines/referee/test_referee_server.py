"""The referee over TCP: plain processes attach to it, as those of torchrun do."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.engines.referee.referee_key import (
    KEY,
    SHORTEST_KEY,
    Offer,
    read_key,
    read_offer,
)
from phalanx.engines.referee.referee_server import DIED, RefereeServer, _Caller
from phalanx.engines.remote import frames as wire
from phalanx.engines.remote import link
from phalanx.engines.remote.frames import Decoder, Frame, announced, encode
from phalanx.engines.remote.link import SentAway, attach_tcp
from phalanx.engines.serialization.plain_messages import NotPlain
from phalanx.errors import UsageError
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
    given = [str(server.offer.port), str(store), server.token, what]
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


def say_hello(server: RefereeServer, token: str, *, rank: int = 0):
    caller = socket.create_connection(("127.0.0.1", server.offer.port), timeout=10)
    caller.sendall(encode(wire.HELLO, rank, body=token.encode()))
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
        b"\xff\xff\xff\xff" + bytes(26),
        encode(wire.FORM, number=1, body=b"\x80\x04" + b")" + b"\x85" * 100_000 + b"."),
    ],
    ids=["pickle", "numbers", "form", "length", "nested"],
)
def test_what_the_desk_does_not_understand_ends_the_checks_of_all(server, frame) -> None:
    with say_hello(server, server.token, rank=1) as other:
        with say_hello(server, server.token) as caller:
            caller.sendall(frame)
            assert caller.recv(1) == b"" and other.recv(1) == b""
        assert server.trouble is not None and server.failures == {}
        with say_hello(server, server.token) as late:  # is told that it was heard
            assert late.recv(100) == encode(wire.PONG) and late.recv(1) == b""


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", [wire.FORM, wire.GROUP, wire.EVENTS, wire.FOUND, wire.NOTES])
def test_a_pickle_of_one_who_knows_the_token_runs_nothing(server, kind, tmp_path) -> None:
    path = tmp_path / "run"
    with say_hello(server, server.token) as caller:
        caller.sendall(encode(kind, body=pickle.dumps(Attack(path))))
        assert caller.recv(1) == b""
    assert "names posix.mkdir" in str(server.trouble) and not path.exists()


@pytest.mark.parametrize("token", ["", "wrong", "x" * 32])
def test_no_message_of_a_stranger_is_read(server, token, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("phalanx.engines.referee.codec.load_plain", pytest.fail)
    path = tmp_path / "run"
    with say_hello(server, token) as caller:
        caller.sendall(encode(wire.FORM, body=pickle.dumps(Attack(path))))
        assert is_hung_up(caller)
    assert server.trouble is None and not path.exists()


def is_hung_up(caller: socket.socket) -> bool:
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True


def test_what_a_false_referee_says_runs_nothing(tmp_path) -> None:
    path = tmp_path / "run"
    reply = Frame(wire.VERDICT, body=pickle.dumps(Attack(path)))
    with pytest.raises(NotPlain, match="posix"):
        link._error_in(reply)
    assert not path.exists()


def test_a_rank_that_is_here_is_not_replaced(server) -> None:
    with say_hello(server, server.token, rank=1) as first:
        first.sendall(encode(wire.PING))
        assert first.recv(100)
        with say_hello(server, server.token, rank=1) as second:
            assert second.recv(1) == b""
        first.sendall(encode(wire.PING))
        assert first.recv(100)


def test_a_rank_that_is_handed_over_needs_no_token() -> None:
    server = RefereeServer(ranks=2, host=None)
    ends = [socket.socketpair() for _ in range(3)]
    try:
        for rank, (near, far) in zip((0, 1, 1), ends, strict=True):
            server.adopt(near, rank)
            far.settimeout(10)
        for _, far in ends[:2]:
            far.sendall(encode(wire.PING))
            assert far.recv(100)
        assert ends[2][1].recv(1) == b""
        assert server._listener is None and server.offer.port == 0
    finally:
        server.close()
        for _, far in ends:
            far.close()


def test_a_key_opens_what_the_offer_alone_does_not() -> None:
    key = "k" * SHORTEST_KEY
    server = RefereeServer(ranks=2, key=key)
    try:
        offer = read_offer(str(server.offer).encode())
        assert offer is not None and offer.token(key) == server.token
        for wrong in (offer.word, Offer(offer.port + 1, offer.word, True).token(key)):
            with pytest.raises(SentAway):
                attach_tcp("127.0.0.1", offer.port, token=wrong, rank=0)
        with pytest.raises(UsageError, match="not on this one"):
            offer.token("")
        with pytest.raises(UsageError, match="not on rank 0's"):
            Offer(offer.port, offer.word).token(key)
    finally:
        server.close()


def test_a_key_that_can_be_guessed_is_refused() -> None:
    assert read_key({}) == "" and read_key({KEY: "k" * SHORTEST_KEY}) == "k" * SHORTEST_KEY
    with pytest.raises(UsageError, match="has 3 characters"):
        read_key({KEY: "abc"})


@given(st.binary(max_size=60))
def test_what_stands_in_a_store_is_an_offer_or_none(text) -> None:
    offer = read_offer(text)
    assert offer is None or str(offer).encode() == text


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=80), max_size=4))
def test_no_bytes_of_strangers_end_the_referee(pieces) -> None:
    """Those of the tests are decoded as the thread does it, without the thread."""
    decoder = Decoder()
    for piece in pieces:
        with suppress(ValueError):
            list(decoder.feed(piece))
    announced(b"".join(pieces))


@pytest.mark.slow
def test_a_crowd_of_half_open_connections_is_sent_away(server, monkeypatch) -> None:
    monkeypatch.setattr("phalanx.engines.referee.referee_server.GREETING", 1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("too few files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    address = ("127.0.0.1", server.offer.port)
    try:
        with ExitStack() as stack:
            crowd = [
                stack.enter_context(socket.create_connection(address, timeout=30))
                for _ in range(1200)
            ]
            with say_hello(server, server.token) as rank:
                rank.sendall(encode(wire.PING))
                assert rank.recv(100)
            assert all(is_hung_up(each) for each in crowd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_half_open_connections_and_garbage_leave_room_for_ranks(server) -> None:
    with ExitStack() as stack:
        for number in range(200):
            caller = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.offer.port), timeout=10)
            )
            caller.sendall(bytes([number]) * (number % 64))
        with say_hello(server, server.token) as rank:
            rank.sendall(encode(wire.PING))
            assert rank.recv(100)


def test_who_was_hung_up_on_in_the_same_round_is_left_alone(server) -> None:
    near, far = socket.socketpair()
    with near, far:
        caller = _Caller(near)
        server._hang_up(caller)
        server._hang_up(caller)
        server._attend(caller)
        assert far.recv(1) == b"" and server.trouble is None


def test_little_is_read_of_who_has_not_said_hello(server) -> None:
    with socket.create_connection(("127.0.0.1", server.offer.port), timeout=10) as caller:
        caller.sendall(b"\xff\xff\xff\xff" + bytes(26))
        assert caller.recv(1) == b""


def test_who_does_not_say_hello_is_sent_away(server, monkeypatch) -> None:
    monkeypatch.setattr("phalanx.engines.referee.referee_server.GREETING", 0.1)
    with socket.create_connection(("127.0.0.1", server.offer.port), timeout=10) as caller:
        caller.sendall(b"\0\0")
        assert caller.recv(1) == b""


def test_a_hello_in_pieces(server) -> None:
    with socket.create_connection(("127.0.0.1", server.offer.port), timeout=10) as caller:
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
