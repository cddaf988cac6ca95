"""Keys of a store that several ranks set: who knew of whom, and who read.

Stores call `wrote`, `saw` and `touched` for calls of the program itself; what torch does with
them on its own account has an order. The order of events is kept from the first such key on.
Deciding is done in `checks/message_race.py`.
"""

from __future__ import annotations

from typing import Any

from phalanx import callsite
from phalanx.backend.session import Session
from phalanx.checks.message_race import (
    Claim,
    Look,
    Write,
    find_claim_race,
    find_unordered_write,
    store_race,
)
from phalanx.core.strand import Strand
from phalanx.matching.happens_before import NOTHING, Known, Ordering, merged
from phalanx.model import Finding, Group, Op

KIND = "message-race"
MOST_KEYS = 1024

Place = tuple[Any, str]
"""A store, however a rank reaches it, and a whole key."""


def tell(session: Session, finding: Finding) -> None:
    """Once for the lines concerned."""
    sites = tuple(block.op.site for block in finding.blocks)
    told = session.notes.setdefault(KIND, {}).setdefault("told", set())
    if sites not in told:
        told.add(sites)
        session.findings.append(finding)


class _Key:
    """What happened to one key. `checks` are looks whether it is there, by rank: the line, and
    the number of the event."""

    __slots__ = ("checks", "claims", "known", "reads", "unordered", "writes")

    def __init__(self) -> None:
        self.writes: dict[int, Write] = {}
        self.reads: list[Op] = []
        self.checks: dict[int, Look] = {}
        self.claims: dict[int, Claim] = {}
        self.known: Known = NOTHING
        self.unordered: tuple[Write, Write] | None = None


def wrote(strand: Strand, place: Place, shown: str, value: bytes) -> None:
    """The program set a key, which it calls `shown`."""
    session: Session = strand.local.session
    if KIND not in session.kinds:
        return
    if session.order is None:
        session.order = Ordering(session.size)
    key = _key(session, place, make=True)
    if key is None:
        return
    order, rank = session.order, strand.rank
    known = order.known_to(rank)
    write = Write(_store_op(session, rank, "set", shown), value, order.event(rank))
    if key.unordered is None:
        key.unordered = find_unordered_write(key.writes.values(), write, known)
    look = key.checks.get(rank)
    if look is not None and not look.found:
        key.claims[rank] = look, write
        for other in key.checks.values():
            _judge_claim(session, key.claims[rank], other, rank, known)
    key.writes[rank] = write
    key.known = merged(key.known, order.known_to(rank))
    _judge(session, key)


def saw(strand: Strand, place: Place, shown: str, name: str, *, found: bool = True) -> None:
    """The program has seen a key, or that there is none: from then on it knows what whoever
    set it knew."""
    session: Session = strand.local.session
    if KIND not in session.kinds:
        return
    if session.order is None:
        session.order = Ordering(session.size)
    order, rank = session.order, strand.rank
    key = _key(session, place, make=name == "check")
    if key is None:
        return
    if name == "check":
        op = _store_op(session, rank, name, shown)
        look = key.checks[rank] = Look(op, order.event(rank), found)
        for claim in key.claims.values():
            _judge_claim(session, claim, look, rank, order.known_to(rank))
    if found:
        order.learn(rank, key.known)
    if name == "get" and not key.reads:
        key.reads.append(_store_op(session, rank, name, shown))
    _judge(session, key)


def touched(strand: Strand, place: Place) -> None:
    """An `add` or the like: who comes later knows what those before knew."""
    session: Session = strand.local.session
    order = session.order
    key = _key(session, place, make=True) if order is not None else None
    if key is None or order is None:
        return
    order.learn(strand.rank, key.known)
    key.known = order.known_to(strand.rank)


def _key(session: Session, place: Place, *, make: bool = False) -> _Key | None:
    keys = session.notes.setdefault(KIND, {}).setdefault("keys", {})
    found: _Key | None = keys.get(place)
    if found is None and make and len(keys) < MOST_KEYS:
        found = keys[place] = _Key()
    return found


def _judge(session: Session, key: _Key) -> None:
    if key.unordered is not None and key.reads:
        tell(session, store_race(key.unordered, key.reads[0]))


def _judge_claim(session: Session, claim: Claim, look: Look, latest: int, known: Known) -> None:
    finding = find_claim_race(claim, look, latest=latest, known=known)
    if finding is not None:
        tell(session, finding)


def _store_op(session: Session, rank: int, name: str, key: str) -> Op:
    world = Group("world", tuple(range(session.size)))
    site = callsite.resolve(callsite.mark(4))
    return Op(rank=rank, name=name, group=world, key=key, site=site)
