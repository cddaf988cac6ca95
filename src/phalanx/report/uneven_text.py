"""Say how ranks parted that should make the same number of calls.

Used by the reports of mismatches and deadlocks, right below the headline. Must never decide
anything: the verdict has the counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from phalanx.model import Absence, LineCount, Site, Uneven, rank_list
from phalanx.report.calls import group_text
from phalanx.report.layout import count, cut, labelled, verb

_WORDS = (
    *("never", "once", "twice", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_DEFAULT = "world"
_SHOWN_SOURCE = 48


def uneven_lines(uneven: Uneven | None) -> list[str]:
    """The lines of a report: the counts, and the branches that lead past the place."""
    if uneven is None:
        return []
    lines: list[str] = []
    for at, place in enumerate(uneven.places):
        text = _counts_text(place)
        if not at and uneven.group.name != _DEFAULT:
            text += f' on "{uneven.group.name}"'
        if not at and uneven.since:
            text += f" (since call #{uneven.since})"
        lines += labelled("" if at else "uneven", text)
    more = _more_text(uneven)
    return [*lines, *(labelled("", more) if more else ()), *branch_lines(uneven.past)]


def absence_headline(absence: Absence) -> str:
    waiting, absent = absence.waiting, absence.absent
    return (
        f"{rank_list(absent)} {verb(absent, 'has', 'have')} not come to call "
        f'#{absence.number} on "{absence.group.name}", where {rank_list(waiting)} '
        f"{verb(waiting, 'waits', 'wait')}"
    )


def absence_lines(absence: Absence | None) -> list[str]:
    """How many calls the members made that are missing, and where they are."""
    if absence is None:
        return []
    made = "no call" if not absence.made else count(absence.made, "call")
    name = rank_list(absence.absent)
    waiting = absence.waiting
    text = (
        f"{name} made {made} on {group_text(absence.group)}; {rank_list(waiting)} "
        f"{verb(waiting, 'is', 'are')} in call #{absence.number}"
    )
    if absence.instead is not None:
        where = "" if absence.instead.site is None else f" at {absence.instead.site}"
        waits = verb(absence.absent, "waits", "wait")
        text += f'; {name} {waits} on "{absence.instead.group.name}"{where}'
    return [*labelled("absent", text), *branch_lines(absence.past)]


def branch_lines(past: Sequence[Site]) -> list[str]:
    """The branches that lead past a line."""
    lines: list[str] = []
    for at, site in enumerate(past):
        source = cut(_COMMENT.sub("", site.source), _SHOWN_SOURCE)
        lines += labelled(
            "" if at else "branch",
            f"or {site}: {source}" if at else f"{site} can lead past it: {source}",
        )
    return lines


def _more_text(uneven: Uneven) -> str:
    parts = []
    if uneven.together is not None:
        parts.append(f"last together there in call #{uneven.together}")
    for ranks, site in uneven.went:
        if site is not None:
            parts.append(f"{rank_list(ranks)} went on to {site}")
        else:
            parts.append(f"{rank_list(ranks)} {verb(ranks, 'has', 'have')} ended")
    return "; ".join(parts)


def _counts_text(counts: Sequence[LineCount]) -> str:
    noun = "times" if all(map(_is_one_call, counts)) else "calls"
    in_words = all(each.times < len(_WORDS) for each in counts)
    if len({each.site for each in counts}) == 1:
        told = [f"{rank_list(e.ranks)}{_times(e.times, noun, in_words)}" for e in counts]
        return f"{counts[0].site}: {', '.join(told)}"
    told = [
        f"{rank_list(e.ranks)}{_times(e.times, noun, in_words)} at {e.site}" for e in counts
    ]
    return ", ".join(told)


def _times(number: int, noun: str, in_words: bool) -> str:
    if not in_words:
        return f": {number} {noun}"
    if number < 3 and noun == "times":
        return f" {_WORDS[number]}"
    word = ("no", "one", "two")[number] if number < 3 else _WORDS[number]
    return f" {word} {'call' if number == 1 else noun}"


def _is_one_call(counts: LineCount) -> bool:
    """Whether the line names one collective, so that each call is a time that a rank came
    there: others make several, such as `loss.backward()` and `all_gather_object`."""
    return bool(_ONE_CALL.search(counts.site.source))


_COMMENT = re.compile(r"  #[^'\"]*$")
_ONE_CALL = re.compile(
    r"\b(all_reduce|barrier|broadcast|reduce|gather|scatter|all_gather|reduce_scatter|all_to_all|"
    r"send|recv|isend|irecv|all_gather_into_tensor|reduce_scatter_tensor|all_to_all_single|monitored_barrier)\("
)
