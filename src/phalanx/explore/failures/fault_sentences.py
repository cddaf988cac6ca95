"""A plan of faults as sentences of a story: who, what and where. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from phalanx.explore.failures.story import Sentence
from phalanx.model import Site, rank_list


def sentences_of_plan(plan: Iterable[Any], journal: Any = None) -> list[Sentence]:
    """One for each fault, in the order of the plan. Where a call is counted, the journal of the
    run says at which line it was."""
    return [_sentence(fault, journal) for fault in plan]


def _sentence(fault: Any, journal: Any) -> Sentence:
    tell = _TELL.get(getattr(fault, "kind", ""))
    if tell is None:
        return Sentence(f"the plan has {fault}")
    site = _site_of(fault, journal)
    place = f", {site}" if site else ""
    return Sentence(f"{tell(fault)}{place}", (site,) if site else ())


def _kill(fault: Any) -> str:
    return f"rank {fault.rank} is killed {_point(fault.at)}"


def _delay(fault: Any) -> str:
    return f"rank {fault.rank} is delayed by {fault.seconds:g} s {_point(fault.at)}"


def _stop(fault: Any) -> str:
    return f"rank {fault.rank} is stopped for {fault.seconds:g} s {_point(fault.at)}"


def _partition(fault: Any) -> str:
    start, end = fault.during
    until = "on for good" if end is None else f"to {end:g} s"
    sides = f"{rank_list(fault.one)} and {rank_list(fault.other)}"
    return f"nothing arrives between {sides} from {start:g} s {until}"


def _drop_store(fault: Any) -> str:
    point = _point(fault.at)
    if fault.rank is not None:
        point = f"when rank {fault.rank} is {point}"
    long = "for good" if fault.seconds is None else f"for {fault.seconds:g} s"
    return f"the store loses its server {long} {point}"


def _corrupt(fault: Any) -> str:
    bits, are = ("1 bit", "is") if fault.bits == 1 else (f"{fault.bits} bits", "are")
    return f"{bits} of the {fault.part} of rank {fault.rank}'s call {fault.call} {are} flipped"


def _raise(fault: Any) -> str:
    return f"{fault.error} is raised in rank {fault.rank} {_point(fault.at)}"


_TELL: Mapping[str, Callable[[Any], str]] = {
    "kill": _kill,
    "delay": _delay,
    "stop": _stop,
    "partition": _partition,
    "drop_store": _drop_store,
    "corrupt": _corrupt,
    "raise_": _raise,
}


def _point(point: Any) -> str:
    """
    >>> from phalanx.faults import call
    >>> _point(call(17))
    'at its call 17'
    """
    if point.word == "call":
        return f"at its call {point.n}"
    if point.word == "store":
        return f"at its store operation {point.n}"
    if point.word == "line":
        return f"at {point.place}" + (f", time {point.n}" if point.n > 1 else "")
    return f"at {point.seconds:g} s"


def _site_of(fault: Any, journal: Any) -> Site | None:
    """The line of the call that the fault counts."""
    point: Any = getattr(fault, "point", None)
    rank = getattr(fault, "rank", None)
    if journal is None or rank is None or getattr(point, "word", "") != "call":
        return None
    calls = list(journal.filter(kind="posted", rank=rank))
    if len(calls) < point.n:
        return None
    site = getattr(calls[point.n - 1], "site", None)
    return site if isinstance(site, Site) else None
