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
| a loop reads it until it has the value that is waited for,  |                              |
| or sleeps in each of its rounds and shows what it saw       | legal                        |
| a script makes its default group again by `env://`          | race on torchrun, whose      |
|                                                             | store keeps the old keys     |

Reads that go on with a value which may still change are in `early_read.py`. Both ask who knows
of whom, and a read tells only what it proves: that a key is there, that a counter has come so
far (`Count`), or all that was done to the key where nothing less is sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from phalanx.checks.early_read import Change, EarlyReads, Look, Read, Reuse, Write
from phalanx.journal.events import Noted, StoreRead, StoreWritten, site_of
from phalanx.journal.reader import Journal
from phalanx.matching.happens_before import (
    NOTHING,
    Addition,
    Count,
    Known,
    Ordering,
    knows,
    merged,
)
from phalanx.model import CallBlock, Finding, Group, Op, Site

KIND = "message-race"
MOST_KEYS = 1024


class _Key:
    """What happened to one key. `looks` ask whether it is there, by rank."""

    def __init__(self) -> None:
        self.writes: dict[int, Write] = {}
        self.reads: list[Op] = []
        self.looks: dict[int, Look] = {}
        self.claims: dict[int, Claim] = {}
        self.known: Known = NOTHING
        """What those knew who changed it."""
        self.unordered: tuple[Write, Write] | None = None
        self.begin()

    def begin(self) -> None:
        """It is not there, or not any more."""
        self.reuse = Reuse()
        self.early = EarlyReads()
        self.count = Count()
        self.first: dict[int, Known] = {}
        """What each rank knew that first made the key, by other means than `add`."""
        self.gone = self.known
        """What those knew who changed it before it was deleted, and who deleted it."""

    def made_by(self, rank: int, known: Known) -> None:
        self.first.setdefault(rank, known)
        self.count.is_plain = False

    def is_there(self) -> Known:
        """What whoever finds the key, with any value, knows."""
        if not self.first:
            return self.count.needed(1)
        found = NOTHING
        for known in self.first.values():
            found = merged(found, known)
        return found

    def is_passed_by(self, rank: int, known: Known, news: Known) -> bool:
        """Whether a rank that comes to it again, as to a barrier, hears of nobody there."""
        again = self.count.is_plain and self.count.times(rank) > 1
        return again and merged(known, news) == known

    def proven(self, proves: int | None, *, dropped: bool = False) -> Known:
        """What whoever reads it knows, if the count that he needs is `proves`."""
        if dropped:
            return self.is_there() if (proves or 0) > 0 else NOTHING
        if proves is None or not self.count.is_plain:
            return self.known
        return self.count.needed(proves)


class StoreWatch:
    """All keys of a run. `order` is shared with what messages tell about it."""

    def __init__(self, size: int, order: Ordering) -> None:
        self._world = Group("world", tuple(range(size)))
        self._order = order
        self._keys: dict[tuple[Any, str], _Key] = {}
        self._beyond: Known = NOTHING
        """What those knew who changed keys that are not followed, because they are too many."""
        self._lines: dict[tuple[int, Site | None], int] = {}
        """By rank and line: the number of the last write."""
        self._made: Counter[int] = Counter()
        """By rank: how many groups it has made."""
        self._idle: dict[int, Op] = {}
        """By rank: a loop that waits for a counter, and went on because of what the rank knew
        before."""

    def add(self, event: StoreWritten | StoreRead) -> Iterator[Finding]:
        """What this event shows, together with those before it."""
        key = self._key(event)
        if key is None:
            self._pass_by(event)
            return iter(())
        if isinstance(event, StoreRead):
            return self._saw(key, event)
        return self._touched(key, event) if event.digest is None else self._wrote(key, event)

    def _wrote(self, key: _Key, event: StoreWritten) -> Iterator[Finding]:
        assert event.digest is not None
        order, rank = self._order, event.rank
        known = order.known_to(rank)
        write = Write(self._op(event), event.digest, order.event(rank))
        self._lines[rank, write.op.site] = write.number
        own = key.writes.get(rank)
        if own is not None and own.value != write.value:
            key.early.change(Change(write.op, write.number, self._made[rank]), known)
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
        key.made_by(rank, order.known_to(rank))
        key.known = merged(key.known, order.known_to(rank))
        yield from _unordered(key)

    def _saw(self, key: _Key, event: StoreRead) -> Iterator[Finding]:
        """From now on the rank knows what the read proves."""
        order, rank, op = self._order, event.rank, self._op(event)
        known, number = order.known_to(rank), order.event(rank)
        if event.name == "check":
            look = key.looks[rank] = Look(op, number, event.found)
            for claim in key.claims.values():
                yield from _found(find_claim_race(claim, look, latest=rank, known=known))
        elif _is_meant(event):
            if event.name in ("get", "wait"):
                key.reuse.read(Look(op, number, True), known)
            key.early.read(
                Read(op, number, event.use, self._made[rank]), merged(known, key.is_there())
            )
        if event.found:
            only = event.name in ("check", "wait")
            proves = 1 if only else event.proves
            dropped = only or event.use == "dropped"
            news = key.proven(proves, dropped=dropped)
            if event.use == "polled" and proves and key.is_passed_by(rank, known, news):
                self._idle[rank] = op
            order.learn(rank, news)
        else:
            order.learn(rank, key.gone)
        if event.name == "get" and not key.reads:
            key.reads.append(op)
        yield from _unordered(key)

    def _touched(self, key: _Key, event: StoreWritten) -> Iterator[Finding]:
        """An `add` or the like: who comes later knows of those before, as far as the answer
        tells."""
        order, rank, amount = self._order, event.rank, event.amount
        known, number = order.known_to(rank), order.event(rank)
        op = self._op(event)
        if amount is None:
            order.learn(rank, key.known)
            if event.name == "delete_key":
                key.known = merged(key.known, order.known_to(rank))
                key.begin()
            else:
                key.reuse = Reuse()
                key.made_by(rank, order.known_to(rank))
        else:
            if _is_meant(event) and amount == 0:
                key.early.read(
                    Read(op, number, event.use, self._made[rank]), merged(known, key.is_there())
                )
            least = None if event.proves is None else event.proves - amount
            order.learn(rank, key.proven(least, dropped=event.use == "dropped"))
            key.reuse = Reuse()
            if amount and _is_meant(event):
                key.early.change(Change(op, number, self._made[rank]), known)
                self._lines[rank, op.site] = number
            key.count.add(Addition(rank, number, amount, order.known_to(rank)))
        key.known = merged(key.known, order.known_to(rank))
        return iter(())

    def make_group(self, rank: int) -> None:
        self._made[rank] += 1

    def _pass_by(self, event: StoreWritten | StoreRead) -> None:
        """A key that is not followed: any read tells of all that was done to such keys."""
        self._order.learn(event.rank, self._beyond)
        if isinstance(event, StoreWritten):
            self._beyond = merged(self._beyond, self._order.known_to(event.rank))

    def findings(self) -> Iterator[Finding]:
        """What shows only when nothing more will happen."""
        all_found = [
            self._with_idle(found)
            for key in self._keys.values()
            for found in (key.reuse.finding() or key.early.finding(self._last_write),)
            if found is not None
        ]
        yield from sorted(all_found, key=lambda found: (found.ranks, found.headline))

    def _with_idle(self, finding: Finding) -> Finding:
        """The finding with the barrier that should have been between, if there is one."""
        for rank in finding.ranks:
            op = self._idle.get(rank)
            if op is not None:
                fact = (
                    f'rank {rank} does not wait at {op.site}: "{op.key}" counts on from round '
                    "to round, and had its number in the first one"
                )
                hint = "give each round of that barrier a key of its own, or let its limit grow"
                return replace(finding, facts=(*finding.facts, ("passed", fact)), hint=hint)
        return finding

    def _last_write(self, rank: int, op: Op) -> int:
        return self._lines.get((rank, op.site), 0)

    def _key(self, event: StoreWritten | StoreRead) -> _Key | None:
        place = (event.store, event.key)
        found = self._keys.get(place)
        if found is None and len(self._keys) < MOST_KEYS:
            found = self._keys[place] = _Key()
        return found

    def _op(self, event: StoreWritten | StoreRead) -> Op:
        return Op(event.rank, event.name, self._world, key=event.shown, site=event.site)


def _is_meant(event: StoreWritten | StoreRead) -> bool:
    """Whether the program means the value of this moment: a loop asks again, and so does a
    thread beside the program's own."""
    return event.use != "polled" and event.thread in (0, 1)


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
