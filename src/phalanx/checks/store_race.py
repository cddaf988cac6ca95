"""Message race, the part about stores: keys that several ranks set without knowing of each
other.

`StoreWatch` follows what the program itself does with its stores, event by event, as the
journal has it; what torch does with them on its own account has an order.

| seen                                                        | verdict                      |
|-------------------------------------------------------------|------------------------------|
| two ranks set one key to different values, neither knew of  |                              |
| the other's, and somebody read it                           | race                         |
| a rank found a key missing and set it; another one looked   | race: both may find it       |
| at the same line without knowing of that                    | missing                      |
| the same value, `add`, `compare_set`, or nobody read        | legal                        |
| ranks that look until a key is there, and set nothing       | legal: they wait             |
| a rank waits for a key again, or reads another value than   |                              |
| that which then replaces it; whoever replaced the key did   | race: the old value or the   |
| not know of that, nor the reader of the replacement         | new one                      |
| the key was deleted between, or is looked for with `check`  | legal                        |
| a script makes its default group again by `env://`          | race on torchrun, whose      |
|                                                             | store keeps the old keys     |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.journal.events import Noted, StoreRead, StoreWritten, site_of
from phalanx.journal.reader import Journal
from phalanx.matching.happens_before import NOTHING, Known, Ordering, knows, merged
from phalanx.model import CallBlock, Finding, Group, Op

KIND = "message-race"
MOST_KEYS = 1024


class _Key:
    """What happened to one key. `looks` ask whether it is there, by rank."""

    __slots__ = ("claims", "known", "looks", "reads", "reuse", "unordered", "writes")

    def __init__(self) -> None:
        self.writes: dict[int, Write] = {}
        self.reads: list[Op] = []
        self.looks: dict[int, Look] = {}
        self.claims: dict[int, Claim] = {}
        self.known: Known = NOTHING
        self.unordered: tuple[Write, Write] | None = None
        self.reuse = Reuse()


class StoreWatch:
    """All keys of a run. `order` is shared with what messages tell about it."""

    def __init__(self, size: int, order: Ordering) -> None:
        self._world = Group("world", tuple(range(size)))
        self._order = order
        self._keys: dict[tuple[Any, str], _Key] = {}

    def add(self, event: StoreWritten | StoreRead) -> Iterator[Finding]:
        """What this event shows, together with those before it."""
        if isinstance(event, StoreRead):
            return self._saw(event)
        return self._touched(event) if event.digest is None else self._wrote(event)

    def _wrote(self, event: StoreWritten) -> Iterator[Finding]:
        key = self._key(event, make=True)
        if key is None or event.digest is None:
            return
        order, rank = self._order, event.rank
        known = order.known_to(rank)
        write = Write(self._op(event), event.digest, order.event(rank))
        key.reuse.write(write, known)
        if key.unordered is None:
            key.unordered = find_unordered_write(key.writes.values(), write, known)
        look = key.looks.get(rank)
        if look is not None and not look.found:
            key.claims[rank] = look, write
            for other in key.looks.values():
                yield from _found(
                    find_claim_race(key.claims[rank], other, latest=rank, known=known)
                )
        key.writes[rank] = write
        key.known = merged(key.known, order.known_to(rank))
        yield from _unordered(key)

    def _saw(self, event: StoreRead) -> Iterator[Finding]:
        """From now on the rank knows what whoever set the key knew."""
        order, rank, looks = self._order, event.rank, event.name == "check"
        key = self._key(event, make=looks)
        if key is None:
            return
        if looks:
            look = key.looks[rank] = Look(self._op(event), order.event(rank), event.found)
            known = order.known_to(rank)
            for claim in key.claims.values():
                yield from _found(find_claim_race(claim, look, latest=rank, known=known))
        if event.name in ("get", "wait"):
            known = order.known_to(rank)
            key.reuse.read(Look(self._op(event), order.event(rank), True), known)
        if event.found:
            order.learn(rank, key.known)
        if event.name == "get" and not key.reads:
            key.reads.append(self._op(event))
        yield from _unordered(key)

    def _touched(self, event: StoreWritten) -> Iterator[Finding]:
        """An `add` or the like: who comes later knows what those before knew."""
        key = self._key(event, make=True)
        if key is not None:
            key.reuse = Reuse()
            self._order.learn(event.rank, key.known)
            key.known = self._order.known_to(event.rank)
        return iter(())

    def findings(self) -> Iterator[Finding]:
        """What shows only when nothing more will happen."""
        for key in self._keys.values():
            yield from _found(key.reuse.finding())

    def _key(self, event: StoreWritten | StoreRead, *, make: bool) -> _Key | None:
        place = (event.store, event.key)
        found = self._keys.get(place)
        if found is None and make and len(self._keys) < MOST_KEYS:
            found = self._keys[place] = _Key()
        return found

    def _op(self, event: StoreWritten | StoreRead) -> Op:
        return Op(event.rank, event.name, self._world, key=event.shown, site=event.site)


def find_reused_stores(journal: Journal) -> Iterator[Finding]:
    """Default groups that scripts make again by `env://`: one finding for each line."""
    alike: dict[Any, list[Noted]] = {}
    for event in journal.noted(KIND):
        alike.setdefault((event.site, site_of(event.what)), []).append(event)
    for (again, first), events in alike.items():
        ranks = tuple(sorted({event.rank for event in events}))
        world = Group("world", ranks)
        ops = [Op(ranks[0], "init_process_group", world, site=at) for at in (first, again)]
        yield Finding(
            kind="message-race",
            severity="warning",
            ranks=(),
            headline=(
                f"init_process_group at {again} may hang on torchrun: it finds the keys of the "
                f"group that {'the same line' if first == again else first} made before"
            ),
            blocks=(
                CallBlock(ranks, ops[0]),
                CallBlock(ranks, ops[1], ("again, by env://",), "<- finds old keys"),
            ),
            facts=(
                (
                    "rule",
                    "torchrun's store outlives destroy_process_group: a rank that is early "
                    "reads where another one could be reached before, and waits there until "
                    "the timeout",
                ),
            ),
            hint=(
                "make the default group once and others with dist.new_group; or pass "
                "store=dist.PrefixStore(...) with another prefix each time"
            ),
        )


def _found(finding: Finding | None) -> Iterator[Finding]:
    if finding is not None:
        yield finding


def _unordered(key: _Key) -> Iterator[Finding]:
    if key.unordered is not None and key.reads:
        yield store_race(key.unordered, key.reads[0])


@dataclass(frozen=True)
class Write:
    """One rank set a key; `value` is equal for equal values, `number` that of the event on its
    rank."""

    op: Op
    value: int
    number: int


def find_unordered_write(
    writes: Iterable[Write], latest: Write, known: Known
) -> tuple[Write, Write] | None:
    """A write of another value by another rank that the latest one's rank did not know of."""
    for each in writes:
        if each.op.rank == latest.op.rank or each.value == latest.value:
            continue
        if not knows(known, each.op.rank, each.number):
            return each, latest
    return None


def store_race(writes: tuple[Write, Write], read: Op) -> Finding:
    one, other = sorted((write.op for write in writes), key=lambda op: op.rank)
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=(one.rank, other.rank),
        headline=(
            f'ranks {one.rank} and {other.rank} set "{one.key}" to different values, '
            f"unordered; rank {read.rank} read it"
        ),
        blocks=(
            CallBlock((one.rank,), one),
            CallBlock((other.rank,), other),
            CallBlock((read.rank,), read, ("got the value of whoever was there last",)),
        ),
        hint="let one rank set it, use a key for each rank, or put a barrier between them",
    )


class Reuse:
    """One rank sets a key again and again, and others read it as often: each time they mean the
    new value. Whoever reads it at other times, as to watch progress, may get any.

    The order that a read of this key itself gives hides that a later wait could have come
    before the write; another seed shows it then."""

    def __init__(self) -> None:
        self._last: Write | None = None
        self._replaced: int | None = None
        """The value that the last write replaced."""
        self._writes: Counter[int] = Counter()
        self._reads: dict[tuple[int, str], tuple[int, Look]] = {}
        """By reader and call: how often, and the last of them."""
        self._raced: dict[tuple[int, str], tuple[Look, Write]] = {}
        """The read, and the write that could have come before or after it."""

    def write(self, write: Write, known: Known) -> None:
        """`known` is what the rank knew before."""
        last, self._last = self._last, write
        self._writes[write.op.rank] += 1
        if last is None:
            return
        self._replaced = last.value
        for who, (_, read) in self._reads.items():
            if self._matters(who, write) and not knows(known, who[0], read.number):
                self._raced.setdefault(who, (read, write))

    def read(self, read: Look, known: Known) -> None:
        who = read.op.rank, read.op.name
        self._reads[who] = self._reads.get(who, (0, read))[0] + 1, read
        last = self._last
        if last is None or self._replaced is None or not self._matters(who, last):
            return
        if not knows(known, last.op.rank, last.number):
            self._raced.setdefault(who, (read, last))

    def _matters(self, who: tuple[int, str], write: Write) -> bool:
        """Whether it makes a difference if the reader's last read comes before this write or
        after it: it gives another value, or waits for what had come before."""
        rank, name = who
        if rank == write.op.rank:
            return False
        return self._reads[who][0] > 1 if name == "wait" else self._replaced != write.value

    def finding(self) -> Finding | None:
        for who, (read, write) in sorted(self._raced.items(), key=lambda each: each[0]):
            if list(self._writes.values()) == [self._reads[who][0]]:
                return _reused(read.op, write.op)
        return None


def _reused(read: Op, write: Op) -> Finding:
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=(write.rank, read.rank),
        headline=(
            f'rank {read.rank} may read "{read.key}" ({read.site}) before rank {write.rank} '
            f"sets it again ({write.site}): nothing orders the two"
        ),
        blocks=(
            CallBlock((write.rank,), write, ("replaces what was there",)),
            CallBlock((read.rank,), read, ("takes the old value as well as the new one",)),
        ),
        hint=(
            "use a key of its own for each round, delete it and wait for all before it is set "
            "again, or put a barrier between them"
        ),
    )


@dataclass(frozen=True)
class Look:
    """A rank looked whether a key is there; `number` is that of the event on its rank."""

    op: Op
    number: int
    found: bool


Claim = tuple[Look, Write]
"""A rank found a key missing, and set it."""


def find_claim_race(claim: Claim, look: Look, *, latest: int, known: Known) -> Finding | None:
    """Whether another rank's look at the same line may have come before or after the claim;
    `latest` is the rank that acted last, and `known` what it knew then."""
    mine, write = claim
    if look.op.rank == mine.op.rank or look.op.site != mine.op.site:
        return None
    if latest == look.op.rank and knows(known, write.op.rank, write.number):
        return None
    if latest != look.op.rank and knows(known, look.op.rank, look.number):
        return None
    one, other = sorted((mine.op, look.op), key=lambda op: op.rank)
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=(one.rank, other.rank),
        headline=(
            f'ranks {one.rank} and {other.rank} may both find "{one.key}" missing: '
            "to look and to set are two steps"
        ),
        blocks=(
            CallBlock((one.rank, other.rank), one),
            CallBlock((write.op.rank,), write.op, ("because it found none",)),
        ),
        hint="use compare_set or add, which do both at once, or let one rank set it",
    )
