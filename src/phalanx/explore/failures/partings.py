"""Where two runs part that should be equal: they chose alike, and did not do the same.

What a run does is a function of its choices, unless something else decides as well: the clock,
the system's random numbers, an address, a thread that nobody knows, or what the run before left
behind. No torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from phalanx.callsite import Mark, resolve
from phalanx.explore.failures.story import step_text, thread_text
from phalanx.explore.trace import Choice, Thread, Trace
from phalanx.model import Finding, Kind, Site

KIND: Kind = "uncontrolled-chance"
SAME_ORDER = "the same order gave another"


@dataclass(frozen=True)
class RunParting:
    """The first point at which the runs differ: what was expected there, and what came."""

    expected: str
    came: str
    ranks: tuple[int, ...]
    site: Site | None = None
    """The program's line of what came, or else of what was expected."""


def parting_of(one: Trace, other: Trace) -> RunParting | None:
    """Where `other` first did something else than `one`; None if they did the same."""
    for index in range(max(len(one.choices), len(other.choices))):
        expected, came = _at(one, index), _at(other, index)
        if expected is None or came is None or _identity(expected) != _identity(came):
            return _parting(index, one, other)
    return None


def _identity(choice: Choice) -> tuple[object, ...]:
    """What is equal in equal runs; the line itself, as the code may be compiled anew."""
    return (
        choice.thread,
        choice.kind,
        choice.places,
        choice.chosen,
        choice.candidates,
        choice.values,
        _line(choice.mark),
    )


def _line(mark: Mark | None) -> tuple[str, int] | None:
    return None if mark is None else (mark[0].co_filename, mark[1])


def _parting(index: int, one: Trace, other: Trace) -> RunParting:
    expected, came = _at(one, index), _at(other, index)
    if expected is not None and came is not None and _did(expected) == _did(came):
        threads = _threads_that_differ(expected, came)
        if threads:
            return _parting_of_offers(threads[0], index, one, other)
    ranks = tuple(dict.fromkeys(each.thread[0] for each in (came, expected) if each))
    return RunParting(_did(expected), _did(came), ranks, _site_of(came) or _site_of(expected))


def _at(trace: Trace, index: int) -> Choice | None:
    return trace.choices[index] if index < len(trace.choices) else None


def _threads_that_differ(expected: Choice, came: Choice) -> list[Thread]:
    """Those that could have gone first, and were about to do something else."""
    offers = [{each.thread: each for each in one.candidates} for one in (expected, came)]
    threads = sorted({*offers[0], *offers[1]})
    return [each for each in threads if offers[0].get(each) != offers[1].get(each)]


def _parting_of_offers(thread: Thread, index: int, one: Trace, other: Trace) -> RunParting:
    told, sites = [], []
    for trace in (one, other):
        step = next((each for each in trace.choices[index:] if each.thread == thread), None)
        offered = [each for each in trace.choices[index].candidates if each.thread == thread]
        what = f"about to make {step_text(offered[0])}" if offered else "at no step"
        site = _site_of(step) if offered else None
        sites.append(site)
        told.append(f"{thread_text(thread)} {what}{f' at {site}' if site else ''}")
    return RunParting(told[0], told[1], (thread[0],), sites[1] or sites[0])


def _site_of(choice: Choice | None) -> Site | None:
    return None if choice is None else resolve(choice.mark)


def _did(choice: Choice | None) -> str:
    if choice is None:
        return "the end of the run"
    site = resolve(choice.mark)
    place = f" at {site}" if site else ""
    among = f", of {', '.join(choice.values)}" if choice.values else ""
    return f"{step_text(choice)} by {thread_text(choice.thread)}{place}{among}"


def chance_found(parting: RunParting, hint: str | None, lost: str | None = None) -> Finding:
    """`lost` is the headline of a failure that came in the first run and not in the second."""
    place = f" at {parting.site}" if parting.site else ""
    facts = [("expected", parting.expected), ("came", parting.came)]
    if lost:
        facts.append(("lost", f"the run failed before: {lost}"))
    facts.append(
        ("rule", "equal choices must give equal runs; else no order can be repeated or proved")
    )
    return Finding(
        KIND,
        "error" if lost else "warning",
        parting.ranks,
        f"{SAME_ORDER} run{place}: something that is no choice decides, too",
        facts=tuple(facts),
        hint=hint,
    )


def unsteady_found(parting: RunParting, names: Collection[str], hint: str | None) -> Finding:
    """Only the results differ: what depends on chance is not compared."""
    return Finding(
        KIND,
        "warning",
        parting.ranks,
        f"{SAME_ORDER} result: {' and '.join(names)} of orders are not compared",
        facts=(("expected", parting.expected), ("came", parting.came)),
        hint=hint,
    )
