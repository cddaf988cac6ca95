"""Where two runs part that should be equal: they chose alike, and did not do the same.

What a run does is a function of its choices, unless something else decides as well: the clock,
the system's random numbers, an address, a thread that nobody knows, or what the run before left
behind. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.callsite import Mark, resolve
from phalanx.explore.failures.story import step_text, thread_text
from phalanx.explore.trace import Choice, Trace
from phalanx.model import Finding, Site

KIND = "uncontrolled-chance"


@dataclass(frozen=True)
class Parting:
    """The first point at which the runs differ: what was expected there, and what came."""

    expected: str
    came: str
    ranks: tuple[int, ...]
    site: Site | None = None
    """The program's line of what came, or else of what was expected."""


def parting_of(one: Trace, other: Trace) -> Parting | None:
    """Where `other` first did something else than `one`; None if they did the same."""
    for index in range(max(len(one.choices), len(other.choices))):
        expected = one.choices[index] if index < len(one.choices) else None
        came = other.choices[index] if index < len(other.choices) else None
        if expected is None or came is None or _identity(expected) != _identity(came):
            return _parting(expected, came)
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


def _parting(expected: Choice | None, came: Choice | None) -> Parting:
    ranks = tuple(dict.fromkeys(each.thread[0] for each in (came, expected) if each))
    sites = [resolve(each.mark) for each in (came, expected) if each is not None]
    site = next((each for each in sites if each is not None), None)
    told = [_did(each) for each in (expected, came)]
    if told[0] == told[1] and expected is not None and came is not None:
        told = [f"{text}, {_offer(each)}" for text, each in zip(told, (expected, came), strict=True)]
    return Parting(told[0], told[1], ranks, site)


def _did(choice: Choice | None) -> str:
    if choice is None:
        return "the end of the run"
    site = resolve(choice.mark)
    place = f" at {site}" if site else ""
    return f"{step_text(choice)} by {thread_text(choice.thread)}{place}"


def _offer(choice: Choice) -> str:
    if choice.values:
        return f"a choice among {', '.join(choice.values)}"
    others = [
        f"{thread_text(each.thread)} ({step_text(each)})"
        for each in choice.candidates
        if each.thread != choice.thread
    ]
    return f"while there could have gone first: {', '.join(others) or 'nobody'}"


def chance_found(parting: Parting, hint: str | None, lost: str | None = None) -> Finding:
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
        f"the same order gave another run{place}: something that is no choice decides, too",
        facts=tuple(facts),
        hint=hint,
    )
