"""What is made of a failed rank's remains: no process is needed to test it."""

from __future__ import annotations

import pickle
import signal

import pytest

import phalanx
from phalanx.engines.remote.control_messages import Raised
from phalanx.engines.remote.failure_evidence import (
    death,
    is_lost_peer,
    precedence,
    restored,
    tidied,
    written_stack,
)
from phalanx.errors import RankDied
from phalanx.model import Group, Op, RankView, Site, Wait


def raised(message: str, *, kind: str = "RuntimeError", when: float = 0.0, **more) -> Raised:
    return Raised(0, kind=kind, message=message, trace="the trace", when=when, **more)


@pytest.mark.parametrize(
    "message",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7404",
        "[gloo/transport/tcp/pair.cc:537] Read error [::1]:13: Connection reset by peer",
        "Broken pipe",
        "failed to recv, got 0 bytes. Connection was likely closed.",
    ],
)
def test_a_lost_connection_is_a_consequence(message) -> None:
    assert is_lost_peer(raised(message))


def test_an_error_of_its_own_is_not() -> None:
    assert not is_lost_peer(raised("shapes differ"))
    assert not is_lost_peer(death(signal.SIGKILL, ["Connection reset by peer"]))


def test_deaths_come_first_then_errors_by_time_then_lost_connections() -> None:
    lost = (0.5, 0, raised("Connection reset by peer"))
    early, late = (1.0, 1, raised("a")), (2.0, 2, raised("b"))
    dead = (3.0, 3, death(3 << 8, []))
    assert sorted([late, lost, dead, early], key=precedence) == [dead, early, late, lost]


def test_how_a_rank_died() -> None:
    by_signal, by_code = death(signal.SIGSEGV, ["one", "", "two"]), death(7 << 8, [])
    assert (by_signal.signal, by_signal.code) == ("SIGSEGV", -11)
    assert str(by_signal).splitlines() == [
        "died of SIGSEGV",
        "its last lines on standard error:",
        "one",
        "two",
    ]
    assert (by_code.signal, by_code.code, str(by_code)) == (None, 7, "died with exit code 7")
    assert "of signal 63" in str(death(63, []))  # without a name
    assert restored(by_code) == (by_code, None)


def test_what_a_dead_rank_was_seen_doing_last() -> None:
    op = Op(1, "barrier", Group("world", (0, 1)), number=3, site=Site("a.py", 7, "f"))
    after, within = RankView(1, "computing", last=op), RankView(1, "waiting", Wait(op, (0,)))
    killed = death(signal.SIGKILL, ["a line"], after)
    assert str(killed).splitlines()[:3] == [
        "died of SIGKILL",
        "last seen after barrier() (call #3) at a.py:7",
        "its last lines on standard error:",
    ]
    assert death(3 << 8, [], within).last == "last seen in barrier() (call #3) at a.py:7"
    assert death(3 << 8, [], RankView(1, "computing")).last is None
    stack = ["Current thread 0x1 (most recent call first):", '  File "a.py", line 3 in f']
    assert death(signal.SIGSEGV, stack, after).last is None


def test_what_torch_says_of_its_frames_is_left_out() -> None:
    text = """mine
[W1115 15:28:23.34 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=5)
Exception raised from recvBytes at /torch/csrc/Utils.hpp:784 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7fd in libc10.so)
<omitting python frames>
frame #41: _start + 0x21 (0x55b in python)

mine, too: frame #7
"""
    assert tidied(text) == "mine\n\nmine, too: frame #7\n"


def test_only_the_last_lines_are_shown_and_all_are_kept() -> None:
    error = death(1 << 8, [f"line {number}" for number in range(30)])
    assert isinstance(error, RankDied) and len(error.stderr) == 30
    assert str(error).splitlines()[2:] == [f"line {number}" for number in range(20, 30)]


def test_an_exception_is_restored_with_its_trace() -> None:
    failure = raised("no", kind="ValueError", error=pickle.dumps(ValueError("no")))
    error, site = restored(failure)
    assert type(error) is ValueError and str(error) == "no" and site is None
    assert "the trace" in str(error.__cause__)


@pytest.mark.parametrize("error", [None, b"rubbish", pickle.dumps(ValueError("another text"))])
def test_an_exception_that_did_not_travel_has_a_stand_in(error) -> None:
    found, _ = restored(raised("no", kind="Odd", error=error))
    assert isinstance(found, phalanx.PhalanxError)
    assert (type(found).__name__, str(found)) == ("Odd", "no")


def test_the_last_stack_python_wrote_without_our_frames() -> None:
    lines = [
        "Stack (most recent call first):",
        '  File "old.py", line 1 in before',
        "something else",
        "Current thread 0x1 (most recent call first):",
        f'  File "{phalanx.__file__}", line 3 in ours',
        '  File "inner.py", line 4 in step',
        '  File "outer.py", line 5 in <module>',
    ]
    stack = written_stack(lines)
    assert [(site.line, site.function) for site in stack] == [(5, "<module>"), (4, "step")]
    assert written_stack(["nothing of the kind"]) == ()
