"""From dumps to an answer: the verdict, what each rank did last, and what cannot be known.

Where ranks left several kinds of files, each kind is judged by itself and the one that says
most is told. Decides first; `render_explanation` and `as_data` are pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.explain.dump_files import BLACK_BOX, FLIGHT_RECORDER, RECORDING, FoundDumps
from phalanx.explain.dump_replay import Replay, replay
from phalanx.explain.rank_dump import MOST_RANKS, DumpError, RankDump
from phalanx.model import Mismatch, RankFailure, Stall, Verdict, rank_list
from phalanx.report.layout import ascii_text, compose, labelled
from phalanx.report.text import headline, render_kind

MOST_TOLD = 8
"""Ranks of which the last call is told."""


@dataclass(frozen=True)
class Explanation:
    """`verdicts` are empty if nothing wrong was found. `told` is the text of verdicts that a
    recording brought along; `unknown` says what cannot be known, and why."""

    source: str
    ranks: int
    dumps: int
    verdicts: tuple[Verdict, ...] = ()
    told: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        return bool(self.verdicts or self.told)


def explain(found: FoundDumps) -> Explanation:
    """The answer of the kind of files that says most."""
    told = [each for each in map(_recorded, found.recordings) if each is not None]
    answers = [
        _explain_kind(kind, found.dumps[kind])
        for kind in (BLACK_BOX, FLIGHT_RECORDER, RECORDING)
        if kind in found.dumps
    ]
    best = min([*told, *answers], key=_weight, default=None)
    if best is None:
        best = Explanation("recording", found.recordings[0][1].ranks, len(found.recordings))
    return replace(best, unknown=(*best.unknown, *found.unread))


def _weight(answer: Explanation) -> int:
    if answer.told:
        return 0
    if not answer.verdicts:
        return 3
    return 2 if isinstance(answer.verdicts[0], Stall) else 1


def _recorded(given: tuple[str, Any]) -> Explanation | None:
    """What the run itself found, if the recording says so."""
    name, recording = given
    end = recording.end or {}
    verdicts = end.get("verdicts") or []
    text = end.get("text")
    if not verdicts and not (end.get("status") == "failed" and text):
        return None
    said = str(text) if text else "\n".join(_verdict_line(each) for each in verdicts)
    return Explanation(f"recording {name}", recording.ranks, recording.ranks, told=(said,))


def _verdict_line(given: Any) -> str:
    kind = given.get("kind") if isinstance(given, dict) else None
    return f"[{kind}] of {given.get('ranks')}" if kind else "a verdict without text"


def _explain_kind(kind: str, dumps: Mapping[int, RankDump]) -> Explanation:
    world = _world(dumps)
    done = replay(dumps, world)
    verdicts: tuple[Verdict, ...] = done.unmet if done.verdict is None else (done.verdict,)
    facts = tuple(_facts(done, dumps))
    return Explanation(
        source=kind,
        ranks=world,
        dumps=len(dumps),
        verdicts=verdicts,
        facts=facts,
        unknown=tuple(_unknown(done, dumps, world)),
    )


def _world(dumps: Mapping[int, RankDump]) -> int:
    """How many ranks there were, as far as the dumps tell."""
    told = [dump.world or 0 for dump in dumps.values()]
    members = [
        max(group.ranks, default=0) + 1
        for dump in dumps.values()
        for group in dump.groups.values()
        if group.ranks
    ]
    world = max([max(dumps) + 1, *told, *members])
    if world > MOST_RANKS:
        raise DumpError(f"a group with rank {world - 1} is in the dumps; were they changed?")
    return world


# -- facts ----------------------------------------------------------------------------------


def _facts(done: Replay, dumps: Mapping[int, RankDump]) -> Iterable[tuple[str, str]]:
    """What ranks did last that others wait for."""
    verdict = done.verdict
    if isinstance(verdict, Stall):
        for rank in verdict.ranks[:MOST_TOLD]:
            yield "last", _last_text(rank, dumps.get(rank))
    if isinstance(verdict, RankFailure):
        for rank in verdict.ranks[:MOST_TOLD]:
            if rank in dumps and dumps[rank].calls:
                yield "last", _last_text(rank, dumps[rank])
    for rank in sorted(done.undecided)[:MOST_TOLD]:
        dump = dumps[rank]
        at = dump.waits_in
        if at is not None:
            call = dump.calls[at]
            place = "" if call.number is None else f" #{call.number}"
            yield (
                "entered",
                f"rank {rank} is in {call.name}{place}, which all known members have entered: "
                "the backend has not finished it",
            )


def _last_text(rank: int, dump: RankDump | None) -> str:
    if dump is None:
        return f"rank {rank} left no dump: it may be dead, or was not asked for one"
    if not dump.calls:
        return f"rank {rank} had made no call that was recorded"
    call = dump.calls[-1]
    number = "" if call.number is None else f" #{call.number}"
    place = f" at {call.site}" if call.site is not None else ""
    ago = ""
    if call.time is not None and dump.taken is not None and dump.taken >= call.time:
        ago = f", {dump.taken - call.time:.1f} s before its dump"
    more = ""
    if dump.unrecorded:
        more = f"; then {dump.unrecorded} more that the recorder does not show"
    elif dump.main is not None and dump.main.lines:
        more = f"; it was at {dump.main.lines[-1]} in {dump.main.lines[-1].function}"
    return f"rank {rank} last called {call.name}{number}{place}{ago}{more}"


def _unknown(done: Replay, dumps: Mapping[int, RankDump], world: int) -> Iterable[str]:
    missing = [rank for rank in range(world) if rank not in dumps]
    if missing:
        rest = ""
        if isinstance(done.verdict, Mismatch) and not done.verdict.ranks:
            rest = ", so which side is at fault cannot be decided"
        yield f"{rank_list(missing)} left no dump: what {_it(missing)} did is not known{rest}"
    late = [rank for rank, dump in dumps.items() if dump.begins_late]
    if late:
        yield (
            f"{rank_list(late)}: the ring was full, so older calls are lost; calls are "
            "compared from where all rings begin"
        )
    silent = [rank for rank, dump in dumps.items() if not dump.records_messages]
    if silent:
        yield (
            "torch's recorder has no messages (send, recv) on Gloo; phalanx.blackbox has them"
        )
    if (done.verdict is not None or done.undecided) and any(
        group.ranks is None and group.name != "0"
        for dump in dumps.values()
        for group in dump.groups.values()
    ):
        yield (
            "the dumps do not tell the members of groups: only that those who used a group "
            "are in it"
        )
    notes: dict[str, list[int]] = {}
    for rank, dump in dumps.items():
        for note in dump.notes:
            notes.setdefault(note, []).append(rank)
    for note, ranks in notes.items():
        yield f"{rank_list(ranks)}: {note}"


def _it(ranks: list[int]) -> str:
    return "it" if len(ranks) == 1 else "they"


# -- text -----------------------------------------------------------------------------------


def render_explanation(given: Explanation) -> str:
    """The report. Texts of a recording are as the run printed them."""
    parts: list[str] = [*given.told, *map(render_kind, given.verdicts)]
    if not parts:
        parts = [f"nothing wrong found in {_source_text(given)}"]
    tail = [line for label, text in given.facts for line in labelled(label, text)]
    tail += [line for text in given.unknown for line in labelled("unknown", text)]
    if given.found:
        tail += labelled("from", _source_text(given))
    return printable(compose("\n\n".join(parts), tail))


def printable(text: str) -> str:
    """Without characters that a terminal would obey: names in dumps are not trusted.

    >>> printable("all_reduce\\x1b[2J")
    'all_reduce?[2J'
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in ascii_text(text))


def _source_text(given: Explanation) -> str:
    if given.source.startswith("recording "):
        return f"the {given.source} of {given.ranks} ranks"
    name = "recordings" if given.source == RECORDING else f"{given.source} files"
    return f"{name} of {given.dumps} of {given.ranks} ranks"


def as_data(given: Explanation) -> dict[str, Any]:
    """The same for programs: plain values."""
    return {
        "source": given.source,
        "ranks": given.ranks,
        "dumps": given.dumps,
        "verdicts": [
            {
                "type": type(verdict).__name__,
                "headline": headline(verdict),
                **dataclasses.asdict(verdict),
            }
            for verdict in given.verdicts
        ],
        "told": [ascii_text(text) for text in given.told],
        "facts": [list(fact) for fact in given.facts],
        "unknown": list(given.unknown),
    }
