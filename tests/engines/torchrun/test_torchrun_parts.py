"""The parts of the torchrun engine that need no ranks: options, addresses, judging."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import socket
import time
from collections import deque
from dataclasses import fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.engines.remote.control_messages import HowFar, Position, Progress, Raised, Where
from phalanx.engines.remote.rank_main import RemoteRank
from phalanx.engines.serialization import socket_wire
from phalanx.engines.standstill import Standstill
from phalanx.engines.torchrun import torchrun_options, torchrun_start
from phalanx.engines.torchrun.addresses import interface_of, is_here, is_loopback, own_address
from phalanx.engines.torchrun.connections import LONGEST_HELLO, Greeting, Member
from phalanx.engines.torchrun.launch_outcome import (
    ELSEWHERE,
    Incarnation,
    find_error,
    is_ended_from_outside,
)
from phalanx.engines.torchrun.launcher_messages import (
    Done,
    Found,
    Hello,
    OpenReferee,
    RefereeIsOpen,
    Stopped,
    read_hello,
)
from phalanx.engines.torchrun.torchrun_launcher import Launch
from phalanx.engines.torchrun.torchrun_options import arguments_for
from phalanx.engines.torchrun.torchrun_rank import TorchrunRank
from phalanx.errors import (
    CollectiveMismatchError,
    RankDied,
    RankFailedError,
    UsageError,
    VerdictError,
)

# -- options ------------------------------------------------------------------------------


def test_one_machine_gets_what_was_given() -> None:
    line = arguments_for({"max-restarts": "2", "standalone": True}, per_node="4", nnodes="1")
    assert line == [
        "--nproc-per-node",
        "4",
        "--nnodes",
        "1",
        "--max-restarts=2",
        "--standalone",
    ]


@pytest.fixture
def two_hosts(monkeypatch):
    here = ("10.0.0.2", "127.0.0.1")
    monkeypatch.setattr(
        torchrun_options, "own_address", lambda host: host if host in here else here[0]
    )
    monkeypatch.setattr(torchrun_options, "is_here", lambda host, port: host in here)

    def line(**given: str) -> list[str]:
        names = {name.replace("_", "-"): value for name, value in given.items()}
        return arguments_for(names, per_node="1", nnodes="2")[4:]

    return line


def test_several_machines_meet_at_an_endpoint(two_hosts) -> None:
    assert two_hosts(rdzv_endpoint="10.0.0.1:29400") == [
        "--rdzv-endpoint=10.0.0.1:29400",
        "--rdzv-backend=c10d",
        "--local-addr=10.0.0.2",
    ]
    assert "--rdzv-conf=is_host=1" in two_hosts(rdzv_endpoint="10.0.0.2:29400")
    kept = two_hosts(rdzv_endpoint="10.0.0.2:29400", rdzv_conf="timeout=5")
    assert "--rdzv-conf=timeout=5,is_host=1" in kept
    # torch knows of loopback, and lets a second launcher there join the first.
    local = two_hosts(rdzv_endpoint="127.0.0.1:29400")
    assert not [each for each in local if each.startswith("--rdzv-conf")]


def test_what_the_user_says_about_meeting_stays(two_hosts) -> None:
    given = {
        "rdzv_endpoint": "10.0.0.2:29400",
        "rdzv_backend": "c10d",
        "rdzv_conf": "is_host=0",
        "local_addr": "10.0.0.9",
    }
    assert sorted(two_hosts(**given)) == [
        "--local-addr=10.0.0.9",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        "--rdzv-endpoint=10.0.0.2:29400",
    ]


def test_numbered_machines_meet_at_the_first(two_hosts) -> None:
    line = two_hosts(master_addr="10.0.0.1", master_port="29500", node_rank="1")
    assert "--rdzv-backend=c10d" not in line and "--node-rank=1" in line
    with pytest.raises(UsageError, match="write --rdzv-endpoint HOST:PORT"):
        two_hosts(node_rank="1")


# -- addresses ----------------------------------------------------------------------------


def test_the_way_to_this_machine_is_the_loopback_interface() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert is_here("localhost") and is_here("127.0.0.1")
    assert not is_here("198.51.100.1") and not is_here("no.such.host.invalid")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not is_here("127.0.0.1", str(taken.getsockname()[1]))
    assert own_address("no.such.host.invalid") is None


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_addresses_of_six() -> None:
    assert is_loopback("::1") and not is_loopback("fe80::1%eth0")
    assert interface_of("::1") in ("lo", None)


# -- judging ------------------------------------------------------------------------------


class FakeDesk:
    def __init__(self, failures=None, error: VerdictError | None = None) -> None:
        self.failures = failures or {}
        self.error = error
        self.stopped = ()


def world(*here: int, ranks: int = 4) -> Incarnation:
    now = Incarnation(0, ranks)
    now.members = dict.fromkeys(here)
    return now


def raised(rank: int, text: str = "ValueError: no", when: float = 1.0) -> Raised:
    kind, _, message = text.partition(": ")
    return Raised(rank, kind, message, trace="", when=when)


def first_line(error: BaseException | None) -> str:
    assert isinstance(error, RankFailedError)
    return str(error).splitlines()[0]


def test_all_done_is_a_success_even_if_a_verdict_was_caught() -> None:
    now = world(0, 1, ranks=2)
    now.done = {rank: Done(rank, True).initialised for rank in (0, 1)}
    assert find_error(now, FakeDesk(error=CollectiveMismatchError("x")), None) is None
    assert now.initialised


def test_a_verdict_is_told_on_every_machine() -> None:
    found = Found(2, "CollectiveMismatchError", "the report")
    elsewhere = world(2, 3)
    elsewhere.ended = {2: found, 3: Stopped(3)}
    error = find_error(elsewhere, None, None)
    assert type(error) is CollectiveMismatchError and str(error) == "the report"
    verdict = CollectiveMismatchError("of the referee")
    assert find_error(elsewhere, FakeDesk(error=verdict), None) is verdict


def test_the_first_failure_is_the_cause() -> None:
    now = world(0, 1)
    now.ended = {0: raised(0, "RuntimeError: Connection closed by peer"), 1: raised(1)}
    assert first_line(find_error(now, None, None)) == "rank 1 raised ValueError: no"


def test_ranks_that_torchs_launcher_ended_are_no_cause() -> None:
    now = world(0, 1)
    now.exits = {0: -15, 1: -11}
    now.lost = {0: 2.0, 1: 1.0}
    now.stderr = {1: deque(["last words"])}
    error = find_error(now, None, None)
    assert first_line(error) == "rank 1 died of SIGSEGV"
    died = error.failures[1]
    assert isinstance(died, RankDied) and died.stderr == ("last words",)


def test_a_failure_elsewhere_is_in_the_report_of_the_desk() -> None:
    now = world(0, 1)
    now.ended = {0: Stopped(0), 1: Stopped(1)}
    referee = FakeDesk({3: "ValueError: bad batch", 2: "died", 0: "died"})
    assert first_line(find_error(now, referee, None)) == "rank 3 raised ValueError: bad batch"
    referee = FakeDesk({2: "died", 3: "died"})
    assert first_line(find_error(now, referee, None)) == "rank 2 died on another machine"


def test_ranks_that_end_without_a_word_are_blamed_on_no_other_machine() -> None:
    now = world(0, 1, ranks=2)
    now.lost, now.done = {1: 1.0}, {0: True}
    assert first_line(find_error(now, FakeDesk(), None)) == "rank 1 died with exit code 0"
    now.ranks = 4
    assert "another machine" in first_line(find_error(now, FakeDesk(), None))


def test_without_a_desk_the_others_are_referred_to() -> None:
    now = world(2, 3)
    now.ended = {2: Stopped(2), 3: Stopped(3)}
    text = first_line(find_error(now, None, None))
    assert text.startswith("ranks 2, 3 of this machine (")
    assert text.endswith("ended because a rank of another machine failed; the report is there")


def test_a_standstill_is_over_its_time_whoever_computes(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("phalanx.engines.standstill.monotonic", lambda: now[0])
    still, unlimited = Standstill(5.0), Standstill(None)
    assert not still.is_time_to_ask()
    now[0] = 101.5
    assert still.is_time_to_ask() and not still.is_time_to_ask()
    assert still.seconds() is None and still.seconds_nearly() is None
    now[0] = 104.5
    assert still.seconds() is None and still.seconds_nearly() == 4.5
    now[0] = 106.0
    assert still.seconds() == 6.0
    still.renew()
    assert still.seconds() is None
    now[0] = 1000.0
    assert unlimited.seconds() is None and not unlimited.is_time_to_ask()
    assert unlimited.seconds_nearly() is None


def test_what_tells_nothing_but_that_ranks_were_ended() -> None:
    elsewhere, ended, failed = (RankDied(code=1, signal=None) for _ in range(3))
    elsewhere.args = (ELSEWHERE,)
    ended.signal = "SIGTERM"
    assert is_ended_from_outside(RankFailedError("", {0: elsewhere, 1: ended}))
    assert is_ended_from_outside(RankFailedError("", {}))
    assert not is_ended_from_outside(RankFailedError("", {0: ended, 1: failed}))
    assert not is_ended_from_outside(ValueError()) and not is_ended_from_outside(None)


# -- who calls the launcher ---------------------------------------------------------------

HELLO = json.dumps({"token": "secret", "stream": "agent", "pid": 7}).encode() + b"\n"


@pytest.fixture
def greeting():
    near, far = socket.socketpair()
    near.setblocking(False)
    welcomed: list[tuple[socket.socket, int]] = []
    made = Greeting(near, "secret", lambda end, hello: welcomed.append((end, hello.pid)))
    yield made, far, welcomed
    near.close()
    far.close()


def test_a_greeting_waits_for_nobody_and_leaves_what_follows(greeting) -> None:
    made, far, welcomed = greeting
    assert made()
    far.sendall(HELLO[:9])
    assert made() and made()
    far.sendall(HELLO[9:] + b"more")
    assert not made()
    made.end()
    ((end, pid),) = welcomed
    assert pid == 7 and end.recv(100) == b"more"


@pytest.mark.parametrize(
    "line",
    [
        HELLO.replace(b"secret", b"guess"),
        HELLO.replace(b'"secret"', b'"\\u00fc"'),
        HELLO.replace(b'"secret"', b"[1]"),
        HELLO.replace(b'"secret"', b'"\\ud800"'),
        HELLO.replace(b"7", b'"7"'),
        HELLO.replace(b"agent", b"anything"),
        b"[" * 990 + b"\n",
        b'{"a":' * 190 + b"\n",
        b"\xff\xfe\n",
        b"null\n",
        b"no hello\n",
        b"x" * LONGEST_HELLO,
        b"",
    ],
    ids=lambda line: str(line[:20]),
)
def test_a_stranger_is_not_welcome(greeting, line) -> None:
    made, far, welcomed = greeting
    far.sendall(line)
    far.shutdown(socket.SHUT_WR)
    assert not made()
    made.end()
    assert welcomed == [] and far.recv(1) == b""


def hello_or_none(line: bytes) -> str | None:
    made = Greeting(None, "secret", nothing)  # type: ignore[arg-type]
    made._line = line
    found = made._hello()
    return None if found is None else found.token


@given(st.binary(max_size=LONGEST_HELLO))
@example(b'{"token": NaN, "stream": "agent", "pid": 1e999}')
def test_any_line_is_a_hello_or_none(line) -> None:
    assert hello_or_none(line) is None


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.just([{}])
FIELDS = [each.name for each in fields(Hello)]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["secret", "agent"])))
def test_any_fields_are_a_hello_or_none(given_fields) -> None:
    line = json.dumps(given_fields).encode()
    found = read_hello(line)
    knows = found is not None and found.token == "secret"
    assert hello_or_none(line) == ("secret" if knows else None)


def test_a_caller_that_says_nothing_is_late(greeting, monkeypatch) -> None:
    made, _, welcomed = greeting
    assert not made.is_late
    now = time.monotonic()
    monkeypatch.setattr("phalanx.engines.torchrun.connections.monotonic", lambda: now + 60)
    assert made.is_late
    made.end()
    assert welcomed == []


def test_the_folder_of_logs_is_the_users_alone(monkeypatch) -> None:
    monkeypatch.setattr(torchrun_start, "_start_agent", lambda settings, base: Agent())
    with torchrun_start._started(SETTINGS) as started:
        assert Path(started.base.logs).stat().st_mode & 0o077 == 0


def test_the_agents_command_line_has_no_token(monkeypatch) -> None:
    """Everybody can read it in the system's list of processes."""
    lines: list[list[str]] = []

    def start(line: list[str], **more: Any) -> Agent:
        lines.append(line)
        return Agent()

    monkeypatch.setattr(torchrun_start.subprocess, "Popen", start)
    with torchrun_start._started(SETTINGS) as started:
        (line,) = lines
        assert started.base.token not in " ".join(line)


def test_the_name_of_the_socket_tells_nothing(monkeypatch) -> None:
    """Everybody can read it in /proc/net/unix."""
    monkeypatch.setattr(torchrun_start, "_start_agent", lambda settings, base: Agent())
    with torchrun_start._started(SETTINGS) as started:
        base = started.base
        assert not any(base.token[at : at + 4] in base.address for at in range(28))


# -- the launcher -------------------------------------------------------------------------


class Agent:
    """Stands for torch's launcher: ended as soon as it was started."""

    stdout = stderr = None
    returncode = 0

    def poll(self) -> int:
        return self.returncode


def nothing(*args: object) -> None: ...


SETTINGS = torchrun_start.TorchrunSettings(
    launcher_options=[],
    program=[],
    on_world=nothing,
    on_output=nothing,
    on_notice=nothing,
    on_tick=lambda: None,
)


@pytest.fixture
def launch(monkeypatch):
    monkeypatch.setattr(torchrun_start, "_start_agent", lambda settings, base: Agent())
    with torchrun_start._started(SETTINGS) as started:
        made = Launch(SETTINGS, started)
        yield made
        made.close()


def test_the_folder_of_logs_goes_whoever_ends_first(monkeypatch) -> None:
    monkeypatch.setattr(torchrun_start, "_start_agent", lambda settings, base: Agent())
    for agent_removes_it in (True, False):
        with torchrun_start._started(SETTINGS) as started:
            folder = Path(started.base.logs)
            (folder / "left").mkdir()
            if agent_removes_it:
                shutil.rmtree(folder)
        assert not folder.exists()


def begin(
    launch: Launch, pid: int, generation: int = 0, **more: Any
) -> tuple[Member, Connection]:
    near, far = socket.socketpair()
    given = {"rank": 0, "ranks": 1, "generation": generation, **more}
    hello = Hello("token", "control", pid, **given)
    launch._welcome(near, hello)
    return launch._now.members[hello.rank], Connection(far.detach())


def test_the_last_words_of_ranks_before_a_restart_are_theirs(launch) -> None:
    old, old_end = begin(launch, 1, 0)
    before = launch._now
    _, end = begin(launch, 2, 1)
    launch.take_in(old, None)
    assert set(before.lost) == {0}
    assert launch._now.lost == {} and [each.pid for each in launch._now.living()] == [2]
    old_end.close()
    end.close()


def test_ranks_that_call_or_end_do_not_stand_still(launch, monkeypatch) -> None:
    old, old_end = begin(launch, 1, 0)
    member, end = begin(launch, 2, 1)
    since = launch._standstill.idle
    later = time.monotonic() + 100
    for who, message, renews in [
        (member, Progress(0, 0.0), False),
        (old, Progress(0, later), False),
        (member, Position(0, 1, ()), False),
        (old, None, False),
        (member, Progress(0, later), True),
        (member, Done(0, True), True),
    ]:
        launch._standstill._since = 0.0
        launch.take_in(who, message)
        assert (since() < 50) is renews, message
    old_end.close()
    end.close()


def test_machines_that_meet_anew_are_new_ranks_without_a_restart_counted(launch) -> None:
    ends = [begin(launch, 1, rank=0, ranks=4, local_ranks=2, meeting="one")[1]]
    ends.append(begin(launch, 2, rank=1, ranks=4, local_ranks=2, meeting="one")[1])
    before = launch._now
    assert set(before.members) == {0, 1}
    ends.append(begin(launch, 3, rank=2, ranks=4, local_ranks=2, meeting="two")[1])
    assert launch._now is not before
    assert set(launch._now.members) == {2}
    for end in ends:
        end.close()


def test_what_ranks_before_a_restart_still_print_is_theirs(launch) -> None:
    _, old_end = begin(launch, 1)
    before = launch._now
    near, far = socket.socketpair()
    launch._welcome(near, Hello("token", "err", 1, rank=0, ranks=1))
    _, end = begin(launch, 2, 1)
    far.sendall(b"late\n")
    launch._hear(1.0)
    assert list(before.stderr[0]) == ["late"]
    assert launch._now.stderr == {}
    for each in (old_end, end, far):
        each.close()


def test_a_launcher_may_ask_how_far_a_rank_is_before_it_answers() -> None:
    here, there = multiprocessing.Pipe()
    rank = TorchrunRank.__new__(TorchrunRank)
    RemoteRank.__init__(rank, there, 2)
    for message in (HowFar(), Where(7), RefereeIsOpen("an offer")):
        socket_wire.send(here, pickle.dumps(message), [])
    assert rank.ask(OpenReferee(None, 3)) == RefereeIsOpen("an offer")
    told = [socket_wire.receive(here) for _ in range(3)]
    assert told[:2] == [OpenReferee(None, 3), Progress(2, 0.0)]
    assert isinstance(told[2], Position)
    assert told[2].number == 7
