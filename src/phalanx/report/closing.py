"""The last lines of a run: how often ranks have started again, how much was checked, and what
was found.

Used by the command line. Must never repeat a report: it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from phalanx.kinds import ALL, ALWAYS
from phalanx.model import RankFailure, Restart, Tally, Verdict, rank_list
from phalanx.report.layout import ascii_text, count
from phalanx.report.text import headline

MOST_CAUGHT = 4


def render_closing(
    tally: Tally,
    findings: Sequence[Verdict],
    error: Verdict | None = None,
    *,
    kinds: frozenset[str] = ALL,
) -> str:
    """One line, and one for each finding that the program has silenced and for each error of
    ours that it has caught. `kinds` are those that were looked for.

    >>> render_closing(Tally(4, collectives=128, messages=12, groups=3), ())
    'phalanx: 4 ranks, 128 collectives and 12 messages on 3 groups checked: nothing found'
    """
    lines = [
        f"phalanx: silenced {each.kind} at {each.site}: {each.reason}"
        for each in tally.silenced
    ]
    caught = find_caught(tally, error)
    lines += [f"phalanx: caught {each.kind}: {headline(each)}" for each in caught[:MOST_CAUGHT]]
    own_error = isinstance(error, RankFailure) and error.kind == "rank-failed"
    failed = f" until {rank_list(error.ranks)} failed" if error and own_error else ""
    found = _found(findings, None if own_error else error, caught)
    if tally.silenced:
        found += f"; {len(tally.silenced)} silenced"
    lines.append(f"phalanx: {_checked(tally)} checked{_limits(kinds)}{failed}: {found}")
    return ascii_text("\n".join(lines))


def sum_up(tallies: Sequence[Tally]) -> Tally:
    """One for several worlds of a run. What the engine of one does not know is unknown of all.

    >>> both = sum_up([Tally(2, collectives=3, groups=1), Tally(4, collectives=1, groups=1)])
    >>> both.ranks, both.collectives, both.groups, both.worlds
    (4, 4, 2, 2)
    """
    return Tally(
        max(each.ranks for each in tallies),
        _sum([each.collectives for each in tallies]),
        _sum([each.messages for each in tallies]),
        _sum([each.groups for each in tallies]),
        tuple(chain.from_iterable(each.silenced for each in tallies)),
        tuple(chain.from_iterable(each.raised for each in tallies)),
        tuple(chain.from_iterable(each.happened for each in tallies)),
        sum(each.worlds for each in tallies),
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if len(known) == len(numbers) else None


def find_caught(tally: Tally, error: Verdict | None) -> Sequence[Verdict]:
    """The errors that the program caught. None where an error of ours ended the run: the report
    is about that one."""
    return tally.raised if error is None or error.kind == "rank-failed" else ()


def _limits(kinds: frozenset[str]) -> str:
    missing, chosen = ALL - kinds, kinds - ALWAYS
    if not missing:
        return ""
    if len(missing) <= len(chosen):
        return f" (not for {', '.join(sorted(missing))})"
    return f" (only for {', '.join(sorted(chosen or kinds))})"


def _checked(tally: Tally) -> str:
    parts = []
    if tally.collectives is not None and (tally.collectives or not tally.messages):
        parts.append(count(tally.collectives, "collective"))
    if tally.messages:
        parts.append(count(tally.messages, "message"))
    what = " and ".join(parts)
    if tally.groups:
        what += f" on {count(tally.groups, 'group')}"
    ranks = count(tally.ranks, "rank")
    if tally.worlds > 1:
        ranks = f"{tally.worlds} worlds of up to {ranks}"
    return f"{ranks}, {what}" if what else ranks


def _found(
    findings: Sequence[Verdict], error: Verdict | None, caught: Sequence[Verdict]
) -> str:
    found = [*findings, *([error] if error is not None else [])]
    parts = [_counted(each, found) for each in ("error", "warning")]
    text = ", ".join(filter(None, parts))
    if caught:
        own = f"{_counted('error', caught)}, caught by the program"
        return f"{text}; {own}" if text else own
    return text or "nothing found"


def _counted(severity: str, found: Sequence[Verdict]) -> str:
    kinds = Counter(each.kind for each in found if each.severity == severity)
    told = ", ".join(
        kind if severity == "error" and len(found) == 1 else f"{number} {kind}"
        for kind, number in sorted(kinds.items())
    )
    return f"{count(sum(kinds.values()), severity)} ({told})" if kinds else ""


def render_faults(plan: Sequence[object], tallies: Sequence[Tally]) -> str:
    """Said at the end of a run with a plan of faults: which happened, in any attempt, and which
    did not. Nothing without a plan.

    >>> print(render_faults(["kill(rank=2, at=call(17))"], [Tally(4)]))
    phalanx: never happened: kill(rank=2, at=call(17)); the run did not come there
    """
    happened = {shown for each in tallies for shown in each.happened}
    lines = []
    for fault in map(str, plan):
        if fault in happened:
            lines.append(f"phalanx: happened: {fault}")
        else:
            lines.append(f"phalanx: never happened: {fault}; the run did not come there")
    return ascii_text("\n".join(lines))


def render_restart(restart: Restart) -> str:
    """Said when ranks start again.

    >>> render_restart(Restart(1, 3, "rank 2 raised ValueError: lost batch", None, 4))
    'phalanx: restart 1 of at most 3: all 4 ranks start again'
    """
    who = f"all {count(restart.ranks, 'rank')} start again"
    if restart.fewer:
        who = f"{count(restart.ranks, 'rank')} start again, the others are gone"
    elif restart.ranks == 1:
        who = "the rank starts again"
    return f"phalanx: restart {restart.number} of at most {restart.most}: {who}"


def render_restarts(restarts: Sequence[Restart]) -> str:
    """Said at the end; nothing where there was none.

    >>> render_restarts([Restart(1, 3, "rank 2 raised ValueError: lost batch", None, 4)])
    'phalanx: 1 restart of at most 3, because rank 2 raised ValueError: lost batch'
    """
    if not restarts:
        return ""
    head = f"phalanx: {count(len(restarts), 'restart')} of at most {restarts[-1].most}"
    if len(restarts) == 1:
        return ascii_text(f"{head}, because {_why(restarts[0])}")
    lines = [f"  {each.number}. {_why(each)}" for each in restarts]
    return ascii_text("\n".join([f"{head}, because", *lines]))


def _why(restart: Restart) -> str:
    where = f" ({restart.site})" if restart.site is not None else ""
    then = f"; {count(restart.ranks, 'rank')} went on" if restart.fewer else ""
    return f"{restart.why}{where}{then}"
