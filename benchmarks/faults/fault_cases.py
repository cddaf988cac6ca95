"""The programs that show what ranks see of a fault: the same on processes and on threads.

A body gets a `Rank`, which says how a rank joins, dies, stops, and writes down what it sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

RANKS, VICTIM = 4, 2
TIMEOUT = 3.0
LIMIT = timedelta(seconds=TIMEOUT)
PAUSE = 0.7
"""Seconds by which one thing surely comes after another."""

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


CUT = "partition"


class Rank(Protocol):
    """What one rank of a case can do."""

    rank: int
    found: list[dict[str, Any]]
    store: Any

    def join(self) -> None:
        """Make the default group, and a first call on it."""

    def note(self, what: str, action: Callable[[], Any]) -> None:
        """Write down what becomes of this."""

    def die(self) -> None:
        """End, as by SIGKILL."""

    def stop(self, seconds: float) -> None:
        """Make no progress for so long."""

    def cut(self, seconds: float | None) -> None:
        """Let nothing arrive between ranks 0 and 1 and ranks 2 and 3, for so long."""

    def connect(self, *, serves: bool = False) -> Any:
        """To the store, anew; or serve it."""


def collective_case(action: Action, moment: str) -> Callable[[Rank], None]:
    def body(me: Rank) -> None:
        me.join()
        if moment == "after":
            me.note("first", lambda: action(me.rank))
        if me.rank == VICTIM:
            if moment == "while":
                time.sleep(PAUSE)
            me.die()
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
            me.stop(seconds)
        else:
            time.sleep(PAUSE)
        me.note("call", lambda: action(me.rank))
        me.note("second", lambda: action(me.rank))

    return body


def new_group_case(me: Rank) -> None:
    me.join()
    if me.rank == VICTIM:
        me.die()
    time.sleep(PAUSE)
    me.note("new_group of all", lambda: dist.new_group(timeout=timedelta(seconds=TIMEOUT)))
    me.note("new_group of survivors, all ranks call it", lambda: dist.new_group([0, 1, 3]))


def survivors_case(me: Rank) -> None:
    me.join()
    part = dist.new_group([0, 1, 3], timeout=timedelta(seconds=TIMEOUT))
    if me.rank == VICTIM:
        me.die()
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
        me.die()
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
        me.die()
    me.note("init_process_group", me.join)


def init_stopped_case(me: Rank) -> None:
    if me.rank == VICTIM:
        me.stop(TIMEOUT / 2)
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
            me.die()
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
    dist.barrier()
    if me.rank == 0:
        me.die()
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
            me.stop(2 * TIMEOUT + 2)
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
        me.die()
    time.sleep(PAUSE)
    if me.rank == 1:
        me.note("new client, no server", lambda: me.connect())
    if me.rank == 3:
        time.sleep(2 * TIMEOUT)
        me.note("server at the same port", lambda: me.connect(serves=True))
        time.sleep(3 * TIMEOUT)  # serve until the others are through
    if me.rank == 1:
        time.sleep(2 * TIMEOUT + 2 * PAUSE - me.found[-1]["seconds"])
        me.note("old client: set", lambda: me.store.set("a", "1"))
        me.note("old client: get", lambda: me.store.get("a"))
        me.note("old client: add", lambda: me.store.add("counter", 1))
        new: list[Any] = []
        me.note("new client", lambda: new.append(me.connect()))
        me.note("new client: get (there before)", lambda: new[0].check(["there"]))
        me.note("new client: set", lambda: new[0].set("b", "1"))
        me.note("new client: get", lambda: new[0].get("b"))


def partition_case(action: Action, seconds: float | None) -> Callable[[Rank], None]:
    """Nothing arrives between ranks 0 and 1 and ranks 2 and 3."""

    def body(me: Rank) -> None:
        me.join()
        dist.barrier()
        if me.rank == 0:
            me.cut(seconds)
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


def cascade_case(me: Rank) -> None:
    """As without any handler: who gets an error ends, and so the next one gets one."""
    me.join()
    if me.rank == VICTIM:
        me.die()
    try:
        me.note("all_reduce", lambda: dist.all_reduce(ones()))
        assert "raised" not in me.found[-1]
    except AssertionError:
        me.die()


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
