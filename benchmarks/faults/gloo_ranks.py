"""The programs of `fault_cases.py` on real Gloo: a process for each rank, real signals, and two
network namespaces for a network that is cut (which needs the rights of root).

Survivors stay alive until all of them have finished, so that what one sees is not what another
one's end does.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from benchmarks.faults.fault_cases import CUT, RANKS, TIMEOUT, Rank, ones

PATIENCE = 40.0
FORK = multiprocessing.get_context("fork")


class GlooRank:
    """What one process does and writes down."""

    host = "127.0.0.1"

    def __init__(self, rank: int, port: int, shared: Any, *, serves: bool = False) -> None:
        self.rank = rank
        self.found: list[dict[str, Any]] = []
        self.shared = shared
        self.port, self.serves = port, serves
        self.store: Any = None
        self.kept: list[Any] = []
        """Stores that stay open: one without a reference closes."""

    def join(self, *, size: int = RANKS, timeout: float = TIMEOUT) -> None:
        limit = timedelta(seconds=timeout)
        self.store = dist.TCPStore(
            self.host,
            self.port,
            size,
            self.serves and self.rank == 0,
            limit,
            wait_for_workers=False,
        )
        dist.init_process_group(
            "gloo", store=self.store, rank=self.rank, world_size=size, timeout=limit
        )
        dist.all_reduce(ones())

    def note(self, what: str, action: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            value = action()
        except Exception as error:
            said = {"raised": type(error).__name__, "text": shown(str(error))}
        else:
            said = {"value": str(value)[:40]}
        self.found.append({"what": what, **said, "seconds": round(time.monotonic() - began, 2)})
        self.shared["found"].put((self.rank, self.found[-1]))

    def die(self) -> None:
        self.shared["found"].close()
        self.shared["found"].join_thread()
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self, seconds: float) -> None:
        self.shared["stop"].put((os.getpid(), seconds))
        os.kill(os.getpid(), signal.SIGSTOP)

    def cut(self, seconds: float | None) -> None:
        self.shared["stop"].put((CUT, seconds))

    def connect(self, *, serves: bool = False) -> Any:
        limit = timedelta(seconds=TIMEOUT)
        found = dist.TCPStore(self.host, self.port, None, serves, limit, wait_for_workers=False)
        self.kept.append(found)
        return found


def shown(text: str) -> str:
    """The first line, without what differs from run to run."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    line = re.sub(r"\[[^\]]*/(\w+\.\w+):\d+\]", r"[\1]", line)
    line = re.sub(r"\[?127\.0\.0\.1\]?:\d+", "[ADDRESS]", line)
    return re.sub(r"\b\d{4,5}\b(?!ms)", "N", line)[:200]


class Sides:
    """Two network namespaces on a bridge: ranks 0 and 1 in one, the others in the other. Needs
    the rights of root; nothing arrives between isolated ports of a bridge."""

    BRIDGE, HOST = "phalanx0", "10.213.7.1"
    NAMES = ("phalanxa", "phalanxb")

    def __enter__(self) -> Sides:
        _ip("link", "add", self.BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{self.HOST}/24", "dev", self.BRIDGE)
        _ip("link", "set", self.BRIDGE, "up")
        for number, name in enumerate(self.NAMES):
            _ip("netns", "add", name)
            _ip("link", "add", f"{name}p", "type", "veth", "peer", "eth0", "netns", name)
            _ip("link", "set", f"{name}p", "master", self.BRIDGE, "up")
            for command in (
                ("addr", "add", f"10.213.7.{number + 2}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", name, *command)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.NAMES:
            _ip("link", "del", f"{name}p")  # its namespace would take a while to do so
            _ip("netns", "del", name)
        _ip("link", "del", self.BRIDGE)

    def cut(self, is_cut: bool) -> None:
        for name in self.NAMES:
            with open(f"/sys/class/net/{name}p/brport/isolated", "w", encoding="ascii") as file:
                file.write(str(int(is_cut)))

    @classmethod
    def enter_rank(cls, rank: int) -> None:
        """Before the process has any thread."""
        name = cls.NAMES[rank // 2]
        with open(f"/var/run/netns/{name}", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns {name}")
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True)


def run_rank(
    rank: int,
    port: int,
    body: Callable[[Rank], None],
    serves: bool,
    shared: Any,
    cut_off: bool = False,
) -> None:
    if cut_off:
        Sides.enter_rank(rank)
        GlooRank.host = Sides.HOST
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, the process ends with it
    os.dup2(sys.stderr.fileno(), 2)
    me = GlooRank(rank, port, shared, serves=serves)
    try:
        body(me)
    except Exception as error:
        shared["found"].put(
            (
                rank,
                {
                    "what": "outside",
                    "raised": type(error).__name__,
                    "text": shown(str(error)),
                    "seconds": 0,
                },
            )
        )
    shared["found"].close()
    shared["found"].join_thread()
    shared["done"].release()
    shared["end"].wait(PATIENCE)
    os._exit(0)


def run_case(
    body: Callable[[Rank], None], serves: bool, sides: Sides | None = None
) -> dict[int, list[dict[str, Any]]]:
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    port = server.port
    if serves:
        del server
    shared = {
        "found": FORK.SimpleQueue(),
        "stop": FORK.SimpleQueue(),
        "done": FORK.Semaphore(0),
        "end": FORK.Event(),
    }
    shared["found"] = FORK.Queue()
    ranks = [
        FORK.Process(
            target=run_rank, args=(rank, port, body, serves, shared, sides is not None)
        )
        for rank in range(RANKS)
    ]
    for each in ranks:
        each.start()
    until, resume = time.monotonic() + PATIENCE, []
    ended = 0
    while time.monotonic() < until:
        if not shared["stop"].empty():
            pid, seconds = shared["stop"].get()
            if pid == CUT:
                sides.cut(True)
            if seconds is not None:
                resume.append((time.monotonic() + seconds, pid))
        for due in [each for each in resume if each[0] <= time.monotonic()]:
            if due[1] == CUT:
                sides.cut(False)
            else:
                os.kill(due[1], signal.SIGCONT)
            resume.remove(due)
        ended += shared["done"].acquire(timeout=0.05)
        killed = sum(each.exitcode == -signal.SIGKILL for each in ranks)
        if ended + killed >= RANKS:
            break
    shared["end"].set()
    for each in ranks:
        each.join(2.0)
        if each.is_alive():
            each.kill()
            each.join()
    found: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(RANKS)}
    while True:
        try:
            rank, note = shared["found"].get(timeout=0.2)
        except Exception:
            return found
        found[rank].append(note)


def run_once(
    name: str, body: Callable[[Rank], None], serves: bool
) -> dict[int, list[dict[str, Any]]]:
    if not name.startswith(CUT):
        return run_case(body, serves)
    with Sides() as sides:
        return run_case(body, serves, sides)


def run_until_met(
    name: str, body: Callable[[Rank], None], serves: bool
) -> dict[int, list[dict[str, Any]]]:
    """What each rank has noted. On a busy machine ranks may not meet in time: again, then."""
    while True:
        found = run_once(name, body, serves)
        if not any(note["what"] == "outside" for notes in found.values() for note in notes):
            return found
