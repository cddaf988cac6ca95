"""What ranks on real Gloo see when one of them is killed or stopped, or the store is lost.

Each case starts 4 processes, injures rank 2 (or the store) and writes down what the others'
calls gave: class, message and seconds, on their first call and on a second one. Survivors stay
alive until all of them have finished, so that what one sees is not what another's end does.
The table of `docs/faults.md` and the rules of `phalanx.faults` rest on these figures.

    python benchmarks/fault_evidence.py [--only TEXT] [--json FILE]

It takes about five minutes. The timeout of groups and stores is 3 s here, half an hour and five
minutes in life; what is said to come "at the timeout" came after 3 s.
"""

from __future__ import annotations

import argparse
import ctypes
import json
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

import torch
import torch.distributed as dist

RANKS, VICTIM = 4, 2
TIMEOUT = 3.0
LIMIT = timedelta(seconds=TIMEOUT)
PAUSE = 0.7
"""Seconds by which one thing surely comes after another."""
PATIENCE = 40.0
FORK = multiprocessing.get_context("fork")

Action = Callable[[int], Any]


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (4,))


def many() -> list[torch.Tensor]:
    return [ones() for _ in range(RANKS)]


COLLECTIVES: dict[str, Action] = {
    "all_reduce": lambda rank: dist.all_reduce(ones()),
    "all_reduce (1 MiB)": lambda rank: dist.all_reduce(ones(1 << 18)),
    "broadcast (from 0)": lambda rank: dist.broadcast(ones(), 0),
    "broadcast (from the victim)": lambda rank: dist.broadcast(ones(), VICTIM),
    "reduce (to 0)": lambda rank: dist.reduce(ones(), 0),
    "all_gather": lambda rank: dist.all_gather(many(), ones()),
    "all_gather_into_tensor": lambda rank: dist.all_gather_into_tensor(ones(16), ones()),
    "gather (to 0)": lambda rank: dist.gather(ones(), many() if rank == 0 else None, 0),
    "gather (to the victim)": lambda rank: dist.gather(
        ones(), many() if rank == VICTIM else None, VICTIM
    ),
    "scatter (from 0)": lambda rank: dist.scatter(ones(), many() if rank == 0 else None, 0),
    "scatter (from the victim)": lambda rank: dist.scatter(
        ones(), many() if rank == VICTIM else None, VICTIM
    ),
    "reduce_scatter": lambda rank: dist.reduce_scatter(ones(), many()),
    "all_to_all_single": lambda rank: dist.all_to_all_single(ones(), ones()),
    "barrier": lambda rank: dist.barrier(),
    "monitored_barrier": lambda rank: dist.monitored_barrier(
        timeout=timedelta(seconds=TIMEOUT)
    ),
    "all_reduce (async)": lambda rank: dist.all_reduce(ones(), async_op=True).wait(),
    "all_gather_object": lambda rank: dist.all_gather_object([None] * RANKS, rank),
}
MESSAGES: dict[str, Action] = {
    "send to the victim": lambda rank: rank != 0 or dist.send(ones(), VICTIM),
    "recv from the victim": lambda rank: rank != 0 or dist.recv(ones(), VICTIM),
    "isend to the victim": lambda rank: rank != 0 or dist.isend(ones(), VICTIM).wait(),
    "irecv from the victim": lambda rank: rank != 0 or dist.irecv(ones(), VICTIM).wait(),
    "recv from any": lambda rank: rank != 0 or dist.recv(ones()),
    "send and recv between survivors": lambda rank: {
        0: lambda: dist.send(ones(), 1),
        1: lambda: dist.recv(ones(), 0),
    }.get(rank, lambda: None)(),
}


class Rank:
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


def shown(text: str) -> str:
    """The first line, without what differs from run to run."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    line = re.sub(r"\[[^\]]*/(\w+\.\w+):\d+\]", r"[\1]", line)
    line = re.sub(r"\[?127\.0\.0\.1\]?:\d+", "[ADDRESS]", line)
    return re.sub(r"\b\d{4,5}\b(?!ms)", "N", line)[:200]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def collective_case(action: Action, moment: str) -> Callable[[Rank], None]:
    def body(me: Rank) -> None:
        me.join()
        if moment == "after":
            me.note("first", lambda: action(me.rank))
        if me.rank == VICTIM:
            if moment == "while":
                time.sleep(PAUSE)
            die()
        if moment != "while":
            time.sleep(PAUSE)
        me.note("call", lambda: action(me.rank))
        me.note("second", lambda: action(me.rank))

    return body


def stopped_case(action: Action, seconds: float) -> Callable[[Rank], None]:
    """The victim makes no progress for a while, then goes on and makes the call, too."""

    def body(me: Rank) -> None:
        me.join()
        if me.rank == VICTIM:
            me.shared["stop"].put((os.getpid(), seconds))
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            time.sleep(PAUSE)
        me.note("call", lambda: action(me.rank))
        me.note("second", lambda: action(me.rank))

    return body


def new_group_case(me: Rank) -> None:
    me.join()
    if me.rank == VICTIM:
        die()
    time.sleep(PAUSE)
    me.note("new_group of all", lambda: dist.new_group(timeout=timedelta(seconds=TIMEOUT)))
    me.note("new_group of survivors, all ranks call it", lambda: dist.new_group([0, 1, 3]))


def survivors_case(me: Rank) -> None:
    me.join()
    part = dist.new_group([0, 1, 3], timeout=timedelta(seconds=TIMEOUT))
    if me.rank == VICTIM:
        die()
    time.sleep(PAUSE)
    me.note("all_reduce on a group of survivors", lambda: dist.all_reduce(ones(), group=part))
    made = []

    def make() -> None:
        made.append(dist.new_group([0, 1, 3], use_local_synchronization=True))

    me.note("new_group(use_local_synchronization=True)", make)
    if made:
        me.note("all_reduce there", lambda: dist.all_reduce(ones(), group=made[0]))
    me.note("all_reduce of all", lambda: dist.all_reduce(ones()))
    me.note("destroy_process_group", dist.destroy_process_group)


def again_case(me: Rank) -> None:
    """Survivors destroy everything and meet again under another prefix of the store."""
    me.join()
    if me.rank == VICTIM:
        die()
    time.sleep(PAUSE)
    me.note("all_reduce", lambda: dist.all_reduce(ones()))
    me.note("destroy_process_group", dist.destroy_process_group)
    again = dist.PrefixStore("again", me.store)
    rank = [0, 1, 3].index(me.rank)
    me.note(
        "init_process_group of survivors",
        lambda: dist.init_process_group(
            "gloo", store=again, rank=rank, world_size=3, timeout=timedelta(seconds=TIMEOUT)
        ),
    )
    me.note("all_reduce there", lambda: dist.all_reduce(ones()))


def init_case(me: Rank) -> None:
    if me.rank == VICTIM:
        die()
    me.note("init_process_group", me.join)


def init_stopped_case(me: Rank) -> None:
    if me.rank == VICTIM:
        me.shared["stop"].put((os.getpid(), TIMEOUT / 2))
        os.kill(os.getpid(), signal.SIGSTOP)
    me.note("init_process_group", me.join)


def destroy_case(me: Rank) -> None:
    me.join()
    if me.rank == VICTIM:
        me.note("destroy_process_group", dist.destroy_process_group)
        return
    time.sleep(PAUSE)
    me.note("all_reduce", lambda: dist.all_reduce(ones()))
    me.note("all_reduce again", lambda: dist.all_reduce(ones()))


STORE: dict[str, Callable[[Any], Any]] = {
    "set": lambda store: store.set("a", "1"),
    "get (there)": lambda store: store.get("there"),
    "get (missing)": lambda store: store.get("missing"),
    "wait": lambda store: store.wait(["missing"], timedelta(seconds=TIMEOUT)),
    "add": lambda store: store.add("counter", 1),
    "check": lambda store: store.check(["there"]),
    "compare_set": lambda store: store.compare_set("x", "", "1"),
    "delete_key": lambda store: store.delete_key("there"),
    "num_keys": lambda store: store.num_keys(),
    "multi_get": lambda store: store.multi_get(["there"]),
}


def store_case(name: str, moment: str) -> Callable[[Rank], None]:
    """The process that serves the store, rank 0, is killed."""

    def body(me: Rank) -> None:
        me.join()
        if me.rank == 0:
            me.store.set("there", "1")
        dist.barrier()
        if me.rank == 0:
            time.sleep(PAUSE if moment == "while" else 0)
            die()
        if me.rank != 1:
            return
        time.sleep(0 if moment == "while" else PAUSE)
        me.note(f"store.{name}", lambda: STORE[name](me.store))
        me.note(f"store.{name} again", lambda: STORE[name](me.store))

    return body


def store_then_group_case(me: Rank) -> None:
    """Groups go on without the store; new ones do not."""
    me.join()
    part = dist.new_group([1, 2, 3], timeout=timedelta(seconds=TIMEOUT))
    if me.rank == 0:
        die()
    time.sleep(PAUSE)
    me.note("all_reduce on a group of survivors", lambda: dist.all_reduce(ones(), group=part))
    me.note("new_group", lambda: dist.new_group([1, 2, 3], timeout=timedelta(seconds=TIMEOUT)))
    me.note("barrier on it", lambda: dist.barrier(part))


def store_missing_case(me: Rank) -> None:
    me.join()
    if me.rank == 1:
        me.note("store.get of a key nobody sets", lambda: me.store.get("missing"))
        me.note("store.wait", lambda: me.store.wait(["missing"], timedelta(seconds=1)))


def store_stopped_case(name: str) -> Callable[[Rank], None]:
    """The process that serves the store makes no progress for longer than the timeout."""

    def body(me: Rank) -> None:
        me.join()
        if me.rank == 0:
            me.store.set("there", "1")
        dist.barrier()
        if me.rank == 0:
            me.shared["stop"].put((os.getpid(), 2 * TIMEOUT + 2))
            os.kill(os.getpid(), signal.SIGSTOP)
        if me.rank != 1:
            return
        time.sleep(PAUSE)
        me.note(f"store.{name}", lambda: STORE[name](me.store))
        me.note(f"store.{name} again", lambda: STORE[name](me.store))
        time.sleep(max(0.0, 3 * TIMEOUT - sum(each["seconds"] for each in me.found)))
        me.note(f"store.{name} later", lambda: STORE[name](me.store))

    return body


def store_restored_case(me: Rank) -> None:
    """Another process serves a store at the same port after the first one was killed."""
    me.join()
    if me.rank == 0:
        me.store.set("there", "1")
    dist.barrier()
    if me.rank == 0:
        die()
    time.sleep(PAUSE)
    if me.rank == 1:
        me.note("new client, no server", lambda: client_of(me, wait=False))
    if me.rank == 3:
        time.sleep(2 * TIMEOUT)
        me.note("server at the same port", lambda: client_of(me, serves=True))
        me.shared["done"].acquire(timeout=PATIENCE)  # serve until the others are through
        me.shared["done"].release()
    if me.rank == 1:
        time.sleep(2 * TIMEOUT + 2 * PAUSE - me.found[-1]["seconds"])
        me.note("old client: set", lambda: me.store.set("a", "1"))
        me.note("old client: get", lambda: me.store.get("a"))
        me.note("old client: add", lambda: me.store.add("counter", 1))
        new: list[Any] = []
        me.note("new client", lambda: new.append(client_of(me)))
        me.note("new client: get (there before)", lambda: new[0].check(["there"]))
        me.note("new client: set", lambda: new[0].set("b", "1"))
        me.note("new client: get", lambda: new[0].get("b"))


def client_of(me: Rank, *, serves: bool = False, wait: bool = True) -> Any:
    limit = timedelta(seconds=TIMEOUT)
    found = dist.TCPStore(me.host, me.port, None, serves, limit, wait_for_workers=False)
    me.kept.append(found)
    return found


def partition_case(action: Action, seconds: float | None) -> Callable[[Rank], None]:
    """Nothing arrives between ranks 0 and 1 and ranks 2 and 3."""

    def body(me: Rank) -> None:
        me.join()
        dist.barrier()
        if me.rank == 0:
            me.shared["stop"].put(("cut", seconds))
        time.sleep(PAUSE / 2)
        me.note("call", lambda: action(me.rank))
        me.note("second", lambda: action(me.rank))

    return body


ACROSS: dict[str, Action] = {
    "all_reduce": COLLECTIVES["all_reduce"],
    "broadcast (from 0)": COLLECTIVES["broadcast (from 0)"],
    "barrier": COLLECTIVES["barrier"],
    "gather (to 0)": COLLECTIVES["gather (to 0)"],
    "send and recv across": lambda rank: {
        0: lambda: dist.send(ones(), 2),
        2: lambda: dist.recv(ones(), 0),
    }.get(rank, lambda: None)(),
    "send and recv within": lambda rank: {
        0: lambda: dist.send(ones(), 1),
        1: lambda: dist.recv(ones(), 0),
        2: lambda: dist.send(ones(), 3),
        3: lambda: dist.recv(ones(), 2),
    }[rank](),
}


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


def cascade_case(me: Rank) -> None:
    """As without any handler: who gets an error ends, and so the next one gets one."""
    me.join()
    if me.rank == VICTIM:
        die()
    try:
        me.note("all_reduce", lambda: dist.all_reduce(ones()))
        assert "raised" not in me.found[-1]
    except AssertionError:
        me.shared["found"].close()
        me.shared["found"].join_thread()
        die()


def cases() -> dict[str, tuple[Callable[[Rank], None], bool]]:
    """By name: the body, and whether rank 0 serves the store."""
    found: dict[str, tuple[Callable[[Rank], None], bool]] = {}
    for moment in ("before", "while", "after"):
        for name, action in {**COLLECTIVES, **MESSAGES}.items():
            if moment == "after" and name not in ("all_reduce", "barrier"):
                continue
            found[f"killed {moment}: {name}"] = collective_case(action, moment), False
    long = 2 * TIMEOUT + 2
    for name in ("all_reduce", "barrier", "broadcast (from 0)", "all_gather"):
        found[f"stopped for long: {name}"] = (
            stopped_case(COLLECTIVES[name], long),
            False,
        )
    found["stopped for long: recv from the victim"] = (
        stopped_case(MESSAGES["recv from the victim"], long),
        False,
    )
    found["stopped for long: send to the victim"] = (
        stopped_case(MESSAGES["send to the victim"], long),
        False,
    )
    found["stopped shortly: all_reduce"] = stopped_case(COLLECTIVES["all_reduce"], 1.5), False
    found["killed: new_group"] = new_group_case, False
    found["killed: group of survivors"] = survivors_case, False
    found["killed: survivors meet again"] = again_case, False
    found["killed before init"] = init_case, False
    found["stopped before init"] = init_stopped_case, False
    found["destroyed on one side"] = destroy_case, False
    found["killed: cascade"] = cascade_case, False
    found["store: nothing wrong"] = store_missing_case, True
    for name in STORE:
        found[f"store killed before: {name}"] = store_case(name, "before"), True
        if name in ("get (missing)", "wait"):
            found[f"store killed while: {name}"] = store_case(name, "while"), True
    found["store killed: groups"] = store_then_group_case, True
    for name in ("set", "get (there)", "wait", "add", "check"):
        found[f"store stopped: {name}"] = store_stopped_case(name), True
    found["store restored"] = store_restored_case, True
    for name, action in ACROSS.items():
        found[f"{CUT} for long: {name}"] = partition_case(action, None), False
        found[f"{CUT} for 1 s: {name}"] = partition_case(action, 1.0), False
    return found


CUT = "partition"


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
        Rank.host = Sides.HOST
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, the process ends with it
    os.dup2(sys.stderr.fileno(), 2)
    me = Rank(rank, port, shared, serves=serves)
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
            if pid == "cut":
                sides.cut(True)
            if seconds is not None:
                resume.append((time.monotonic() + seconds, pid))
        for due in [each for each in resume if each[0] <= time.monotonic()]:
            if due[1] == "cut":
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", help="write all figures there")
    given = parser.parse_args()
    kept: dict[str, Any] = {}
    for name, (body, serves) in cases().items():
        if given.only not in name:
            continue
        kept[name] = run_once(name, body, serves)
        while any(note["what"] == "outside" for notes in kept[name].values() for note in notes):
            print(f"\n{name}: ranks did not meet in time, again", flush=True)
            kept[name] = run_once(name, body, serves)
        print(f"\n{name}", flush=True)
        for rank, notes in kept[name].items():
            for note in notes:
                what = note.get("raised") or "ok"
                print(
                    f"  rank {rank}  {note['what']:<10} {note['seconds']:>5.1f} s  {what} "
                    f"{note.get('text', note.get('value', ''))}",
                    flush=True,
                )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(
                {"torch": torch.__version__, "timeout": TIMEOUT, "cases": kept}, file, indent=1
            )


if __name__ == "__main__":
    main()
