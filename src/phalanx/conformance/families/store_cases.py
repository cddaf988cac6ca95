"""Every store with every method: alone on a rank, and shared by all ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from phalanx.conformance.case_context import Context
from phalanx.conformance.family import Family

family = Family("stores")
cases, PROGRAMS = family.cases, family.programs

c10d: Any = dist  # torch's stubs leave the stores and their errors out

BRIEF = timedelta(milliseconds=60)
KINDS = (
    "HashStore",
    "TCPStore",
    "FileStore",
    "PrefixStore-Hash",
    "PrefixStore-TCP",
    "PrefixStore-File",
)
QUEUED = tuple(kind for kind in KINDS if not kind.endswith(("FileStore", "-File")))
UNQUEUED = tuple(kind for kind in KINDS if kind not in QUEUED)
SHARED = ("TCPStore", "FileStore", "PrefixStore-TCP", "PrefixStore-File", "of the group")


def own(me: Context, kind: str) -> Any:
    """A store that no other rank knows, empty."""
    if kind.startswith("PrefixStore-"):
        return c10d.PrefixStore("prefix", own(me, kind.partition("-")[2] + "Store"))
    if kind == "HashStore":
        return c10d.HashStore()
    if kind == "FileStore":
        return c10d.FileStore(str(me.scratch / me.name(f"own-{me.rank}")), 1)
    return emptied(me.keep("own TCPStore", serve))


def shared(me: Context, kind: str) -> Any:
    """One store for all ranks of the run."""
    if kind == "of the group":
        return c10d.PrefixStore(me.name("case"), private_store(me))
    if kind.startswith("PrefixStore-"):
        return c10d.PrefixStore("prefix", shared(me, kind.partition("-")[2] + "Store"))
    if kind == "FileStore":
        return c10d.FileStore(str(me.scratch / me.name("shared")), me.size)
    store = me.keep("shared TCPStore", lambda: connect(me))
    if me.rank == 0:
        emptied(store)
    dist.barrier()
    return store


def serve() -> Any:
    """A server of one's own. It is kept, and made again if it does not answer: on some
    virtual machines one new server in fifty does not accept connections for seconds."""
    for attempt in range(5):
        try:
            return c10d.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=2), False)
        except c10d.DistNetworkError:
            if attempt == 4:
                raise
    raise AssertionError("unreachable")


def connect(me: Context) -> Any:
    made = serve() if me.rank == 0 else None
    port: list[Any] = [made.port if made is not None else None]
    dist.broadcast_object_list(port, src=0)
    return made or c10d.TCPStore("127.0.0.1", port[0], None, False, timedelta(seconds=5))


def emptied(store: Any) -> Any:
    store.set_timeout(timedelta(seconds=5))
    for key in store.list_keys():
        store.delete_key(key)
    return store


def private_store(me: Context) -> Any:
    """The store under the default group, as torch returns it for the group."""
    group: Any = dist.group.WORLD
    return group.get_group_store()


def expecting(kind: str) -> tuple[type[Exception], ...]:
    """The error of a wait that times out; the file store knows only RuntimeError."""
    return (RuntimeError,) if "File" in kind else (c10d.DistStoreError,)


@family.case("Store", "set and get", over={"kind": KINDS})
def set_and_get(me: Context, kind: str) -> None:
    store = own(me, kind)
    for key, value in (("a", "1"), ("a", "2"), ("b", b"\x00\xff"), ("", "x"), ("e", "")):
        store.set(key, value)
        wanted = value if isinstance(value, bytes) else value.encode()
        me.equal(store.get(key), wanted, f"get of {key!r}")
    store.set("k\u00e9y", "v\u00e9")
    me.equal(store.get("k\u00e9y"), "v\u00e9".encode(), "text that is not ASCII")


@family.case("Store", "add", over={"kind": KINDS})
def add(me: Context, kind: str) -> None:
    store = own(me, kind)
    found = [store.add("n", amount) for amount in (2, 3, -10)]
    me.equal(found, [2, 5, -5], "what add returns")
    me.equal(store.get("n"), b"-5", "the number as text")
    store.set("m", "40")
    me.equal(store.add("m", 2), 42, "add to a number that was set")


@family.case("Store", "wait for what is there", over={"kind": KINDS})
def wait_for_present(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.multi_set(["a", "b"], ["1", "2"])
    store.wait(["a", "b"])
    store.wait(["b"], BRIEF)
    store.wait([])


@family.case(
    "Store",
    "wait in vain",
    over={"kind": KINDS},
)
def wait_in_vain(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.set("a", "1")
    errors = expecting(kind)
    me.raises(errors, lambda: store.wait(["a", "missing"], BRIEF), "wait with a timeout")
    store.set_timeout(BRIEF)
    me.raises(errors, lambda: store.wait(["missing"]), "wait")
    me.raises(errors, lambda: store.get("missing"), "get")
    me.raises(errors, lambda: store.multi_get(["a", "missing"]), "multi_get")
    me.equal(store.get("a"), b"1", "the store afterwards")


@family.case("Store", "compare_set", over={"kind": KINDS})
def compare_set(me: Context, kind: str) -> None:
    store = own(me, kind)
    me.equal(store.compare_set("c", "", "v"), b"v", "a new key")
    me.equal(store.compare_set("c", "other", "w"), b"v", "another value is there")
    me.equal(store.compare_set("c", "v", "w"), b"w", "the value is there")
    me.equal(store.compare_set("d", "x", "w"), b"x", "no such key, something expected")
    me.equal(store.check(["d"]), False, "whether that made a key")


@family.case("Store", "check", over={"kind": KINDS})
def check(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.set("a", "1")
    found = [store.check(["a"]), store.check(["a", "missing"]), store.check([])]
    me.equal(found, [True, False, True], "check")


@family.case("Store", "delete_key", over={"kind": KINDS})
def delete_key(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.set("a", "1")
    me.equal(store.delete_key("a"), True, "delete of a key that is there")
    me.equal(store.check(["a"]), False, "check after the delete")
    me.equal(store.delete_key("a"), "File" in kind, "delete of a key that is gone")
    store.set("a", "2")
    me.equal(store.get("a"), b"2", "the key set again")


@family.case("Store", "num_keys", over={"kind": KINDS})
def num_keys(me: Context, kind: str) -> None:
    store = own(me, kind)
    before = store.num_keys()
    for key in ("a", "b", "a"):
        store.set(key, "1")
    me.equal(store.num_keys() - before, 2, "keys more")
    store.delete_key("a")
    me.equal(store.num_keys() - before, 1, "keys more after a delete")


@family.case("Store", "timeout", over={"kind": KINDS})
def timeout(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.set_timeout(timedelta(seconds=7))
    me.equal(store.timeout, timedelta(seconds=7), "timeout")


@family.case("Store", "append", over={"kind": KINDS})
def append(me: Context, kind: str) -> None:
    store = own(me, kind)
    for piece in ("x", "yz", ""):
        store.append("a", piece)
    me.equal(store.get("a"), b"xyz", "what was appended")


@family.case("Store", "many at once", over={"kind": KINDS})
def many_at_once(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.multi_set(["a", "b", "c"], ["1", "2", "3"])
    me.equal(store.multi_get(["c", "a"]), [b"3", b"1"], "multi_get")
    me.equal(store.has_extended_api(), "File" not in kind, "has_extended_api")


@family.case(
    "Store",
    "queues",
    over={"kind": QUEUED},
)
def queues(me: Context, kind: str) -> None:
    store = own(me, kind)
    me.equal(store.queue_len("q"), 0, "length of a new queue")
    for value in ("1", "2", "3"):
        store.queue_push("q", value)
    me.equal(store.queue_len("q"), 3, "length")
    me.equal([store.queue_pop("q") for _ in range(3)], [b"1", b"2", b"3"], "popped")
    me.raises(c10d.QueueEmptyError, lambda: store.queue_pop("q", block=False), "empty queue")
    store.set_timeout(BRIEF)
    me.raises(c10d.DistStoreError, lambda: store.queue_pop("q"), "pop in vain")


@family.case(
    "Store",
    "queues refused",
    over={"kind": UNQUEUED},
)
def queues_refused(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.set_timeout(BRIEF)
    me.raises(NotImplementedError, lambda: store.queue_len("q"), "queue_len")
    me.raises(NotImplementedError, lambda: store.queue_push("q", "1"), "queue_push")
    me.raises(NotImplementedError, lambda: store.queue_pop("q"), "queue_pop")


@family.case("Store", "list_keys", over={"kind": KINDS})
def list_keys(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.multi_set(["b", "a"], ["1", "2"])
    found = set(store.list_keys())
    me.check({"a", "b"} <= found, f"list_keys gives {sorted(found)}")
    store.delete_key("a")
    me.check("a" not in set(store.list_keys()), "a deleted key is listed")


@family.case("Store", "clone", over={"kind": KINDS})
def clone(me: Context, kind: str) -> None:
    store = own(me, kind)
    store.set("a", "1")
    other = store.clone()
    me.equal(type(other), type(store), "type of the clone")
    me.equal(other.get("a"), b"1", "what was there")
    other.set("b", "2")
    me.equal(store.get("b"), b"2", "what the clone set")


@family.case("Store", "wrong types", over={"kind": KINDS})
def wrong_types(me: Context, kind: str) -> None:
    store: Any = own(me, kind)
    me.raises(TypeError, lambda: store.set("a", 1), "set of a number")
    me.raises(TypeError, lambda: store.get(1), "get of a number")
    me.raises(TypeError, lambda: store.add("a", "x"), "add of text")


@family.case("TCPStore", "host and port")
def host_and_port(me: Context) -> None:
    store = own(me, "TCPStore")
    me.equal(store.host, "127.0.0.1", "host")
    me.check(store.port > 0, "no port")


@family.case("FileStore", "path")
def path(me: Context) -> None:
    store = own(me, "FileStore")
    me.check(str(me.scratch) in store.path, f"path is {store.path}")


@family.case(
    "PrefixStore",
    "keeps keys apart",
    over={"kind": ("Hash", "TCP", "File")},
)
def prefixes(me: Context, kind: str) -> None:
    below = own(me, f"{kind}Store")
    one, other = c10d.PrefixStore("one", below), c10d.PrefixStore("other", below)
    inner = c10d.PrefixStore("inner", one)
    one.set("a", "1")
    other.set("a", "2")
    inner.set("a", "3")
    found = [one.get("a"), other.get("a"), inner.get("a"), below.get("one/inner/a")]
    me.equal(found, [b"1", b"2", b"3", b"3"], "values")
    me.check(one.underlying_store is not None, "no underlying store")


@family.case("Store", "shared/set here get there", over={"kind": SHARED})
def set_here_get_there(me: Context, kind: str) -> None:
    store = shared(me, kind)
    store.set(f"of {me.rank}", str(me.rank * 3))
    found = [int(store.get(f"of {rank}")) for rank in range(me.size)]
    me.equal(found, [rank * 3 for rank in range(me.size)], "values of all ranks")
    dist.barrier()


@family.case("Store", "shared/counting", over={"kind": SHARED})
def counting(me: Context, kind: str) -> None:
    store = shared(me, kind)
    if store.add("n", 1) == me.size:
        store.set("all", "yes")
    store.wait(["all"], timedelta(seconds=5))
    me.equal(store.add("n", 0), me.size, "how many counted")
    dist.barrier()


@family.case("Store", "shared/one wins", over={"kind": SHARED})
def one_wins(me: Context, kind: str) -> None:
    store = shared(me, kind)
    winner = store.compare_set("who", "", str(me.rank))
    found: list[Any] = [None] * me.size
    dist.all_gather_object(found, bytes(winner))
    me.equal(len(set(found)), 1, "number of winners")


@family.case("Store", "shared/wait for a late rank", over={"kind": SHARED}, least=2)
def wait_for_late(me: Context, kind: str) -> None:
    store = shared(me, kind)
    if me.rank == me.size - 1:
        store.get("go")
        store.set("late", "here")
    else:
        store.set("go", "1")
        me.equal(store.get("late"), b"here", "value of the late rank")
    dist.barrier()


@family.case(
    "Store",
    "shared/queue",
    over={"kind": ("TCPStore", "PrefixStore-TCP")},
    least=2,
)
def shared_queue(me: Context, kind: str) -> None:
    store = shared(me, kind)
    if me.rank == 0:
        found = sorted(int(store.queue_pop("q")) for _ in range(me.size - 1))
        me.equal(found, list(range(1, me.size)), "what the others pushed")
    else:
        store.queue_push("q", str(me.rank))
    dist.barrier()


@family.case("Store", "shared/multi_get waits", over={"kind": SHARED}, least=2)
def multi_get_waits(me: Context, kind: str) -> None:
    store = shared(me, kind)
    keys = [f"of {rank}" for rank in range(me.size)]
    store.set(keys[me.rank], "x" * (me.rank + 1))
    found = [len(value) for value in store.multi_get(keys)]
    me.equal(found, [rank + 1 for rank in range(me.size)], "lengths")
    dist.barrier()
