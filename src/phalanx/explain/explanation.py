"""From dumps to an answer: the verdict, what each rank did last, and what cannot be known.

Where ranks left several kinds of files, each kind is judged by itself and the one that says
most is told. Every recording is a run of its own. `explanation_text.py` makes it a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.errors import UsageError
from phalanx.explain.dump_files import BLACK_BOX, FLIGHT_RECORDER, FoundDumps, FoundRecording
from phalanx.explain.dump_replay import Replay, replay
from phalanx.explain.rank_dump import MOST_RANKS, DumpError, RankDump
from phalanx.explain.recorded_run import RecordedRun, read_recording
from phalanx.model import Deadlock, Finding, Mismatch, RankFailure, Stall, Verdict, rank_list
from phalanx.report.text import headline

MOST_TOLD = 8
"""Ranks of which the last call is told."""
LONG_STILL = 30.0
"""Seconds: ranks that have moved no later than that before a recording ends stood still."""


@dataclass(frozen=True)
class Explanation:
    """`verdicts` are empty if nothing wrong was found. A recording may bring verdicts along:
    `told` is their text, `recorded` are their plain values. `unknown` says what cannot be
    known, and why; `unread`, which files were left out. `is_cut` says that a recording ends in
    the middle. `others` are further recordings, the worst first."""

    source: str
    ranks: int
    dumps: int
    verdicts: tuple[Verdict, ...] = ()
    told: tuple[str, ...] = ()
    recorded: tuple[Mapping[str, Any], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    is_cut: bool = False
    others: tuple[Explanation, ...] = ()

    @property
    def found(self) -> bool:
        return bool(self.verdicts or self.told)

    @property
    def is_recording(self) -> bool:
        return self.source.startswith("recording ")


def explain(found: FoundDumps) -> Explanation:
    """The answer that says most; of recordings all. Raises `DumpError` if there is none."""
    unread = list(found.unread)
    answers = []
    for recording in found.recordings:
        try:
            answers.append(_explain_recording(recording))
        except Exception as error:  # of any kind: the file is not trusted
            why = _why_not(recording.name, "recording", error)
            if recording.named:
                raise why from None
            unread.append(str(why))
    for kind in (BLACK_BOX, FLIGHT_RECORDER):
        if found.dumps.get(kind):
            try:
                answers.append(_explain_kind(kind, found))
            except Exception as error:
                files = sorted(dump.file for dump in found.dumps[kind].values())
                unread.append(
                    str(_why_not(", ".join(files[:4]), f"set of {kind} files", error))
                )
    if not answers:
        raise DumpError("\n  ".join(unread[:4]))
    best, *rest = sorted(answers, key=_weight)
    others = tuple(each for each in rest if each.is_recording)
    unreadable = found.unreadable(best.source)
    return replace(best, unread=tuple(_with_ranks(unread, unreadable)), others=others)


def _with_ranks(unread: Iterable[str], unreadable: Mapping[int, str]) -> Iterable[str]:
    """Whose files these are, as far as somebody would miss them."""
    for line in unread:
        ranks = [rank for rank, file in unreadable.items() if line.startswith(f"{file}:")]
        yield f"{line}; what rank {ranks[0]} did is not known" if ranks else line


def _why_not(name: str, kind: str, error: Exception) -> DumpError:
    what = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    return DumpError(f"{name}: this is no whole {kind} ({what[:120]}); was it changed?")


def _weight(answer: Explanation) -> int:
    """Small for what is worst."""
    if answer.told:
        warns = [each.get("severity") == "warning" for each in answer.recorded]
        return 2 if warns and all(warns) else 0
    if not answer.verdicts:
        return 3
    return 2 if isinstance(answer.verdicts[0], Stall) else 1


# -- recordings -----------------------------------------------------------------------------


def _explain_recording(given: FoundRecording) -> Explanation:
    """What the run itself found, if the recording says how it ended; else what the calls
    tell."""
    recording = given.recording
    answer = Explanation(f"recording {given.name}", recording.ranks, recording.ranks)
    end = recording.end
    if end is None:
        return _explain_cut(answer, read_recording(recording, given.name))
    listed = end.get("verdicts")
    verdicts = [each for each in listed if isinstance(each, dict)] if listed else []
    text = end.get("text")
    if not verdicts and not (end.get("status") == "failed" and text):
        read_recording(recording, given.name)  # raises if the file is not what it says
        return answer
    said = str(text) if text else "\n".join(map(_verdict_line, verdicts))
    return replace(answer, told=(said,), recorded=tuple(verdicts))


def _verdict_line(given: Mapping[str, Any]) -> str:
    kind = given.get("kind")
    return f"[{kind}]: {given.get('headline')}" if kind else "a verdict without text"


def _explain_cut(answer: Explanation, run: RecordedRun) -> Explanation:
    """The process died, or still runs. Ranks that wait then are no stall: the others were on
    their way. What is proved stays proved."""
    done = replay(run.dumps, answer.ranks)
    verdict = done.verdict
    answer = replace(answer, is_cut=True, unknown=tuple(_unknown_of(run)))
    if isinstance(verdict, Stall) and run.still < LONG_STILL:
        verdict = None
    if isinstance(verdict, (Deadlock, Finding)) and (run.has_gaps or run.has_threads):
        verdict = None  # what is missing may be what somebody waits for
    if verdict is None:
        return replace(answer, facts=tuple(_ends(run.dumps)))
    return replace(answer, verdicts=(verdict,), facts=tuple(_facts(done, run.dumps, {})))


def _unknown_of(run: RecordedRun) -> Iterable[str]:
    if run.has_gaps:
        yield "events were lost, because ranks were quicker than the recorder"
    if any(dump.begins_late for dump in run.dumps.values()):
        yield "the oldest events are gone: calls are compared from where all ranks have some"


def _ends(dumps: Mapping[int, RankDump]) -> Iterable[tuple[str, str]]:
    """Where each rank was when the recording ended."""
    alike: dict[str, list[int]] = {}
    for rank, dump in sorted(dumps.items()):
        if dump.status == "running":
            alike.setdefault(_end_text(dump), []).append(rank)
    for text, ranks in list(alike.items())[:MOST_TOLD]:
        yield "last", f"{rank_list(ranks)} {text}"


def _end_text(dump: RankDump) -> str:
    at = dump.waits_in
    if not dump.calls:
        return "before the first call"
    call = dump.calls[-1 if at is None else at]
    number = "" if call.number is None else f" #{call.number}"
    place = f" at {call.site}" if call.site is not None else ""
    return f"{'after' if at is None else 'in'} {call.name}{number}{place}"


# -- dumps ----------------------------------------------------------------------------------


def _explain_kind(kind: str, found: FoundDumps) -> Explanation:
    dumps, unreadable = found.dumps[kind], found.unreadable(kind)
    world = max([_world(dumps), *(rank + 1 for rank in unreadable)])
    done = replay(dumps, world)
    return Explanation(
        source=kind,
        ranks=world,
        dumps=len(dumps),
        verdicts=done.unmet if done.verdict is None else (done.verdict,),
        facts=tuple(_facts(done, dumps, unreadable)),
        unknown=tuple(_unknown(done, dumps, world, unreadable)),
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


def _facts(
    done: Replay, dumps: Mapping[int, RankDump], unreadable: Mapping[int, str]
) -> Iterable[tuple[str, str]]:
    """What ranks did last that others wait for."""
    verdict = done.verdict
    if done.presumed is not None:
        yield (
            "proved if",
            f"these were all ranks, which the dumps do not tell: {headline(done.presumed)}",
        )
    elif isinstance(verdict, Stall):
        for rank in verdict.ranks[:MOST_TOLD]:
            if rank not in unreadable:
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


def _unknown(
    done: Replay, dumps: Mapping[int, RankDump], world: int, unreadable: Mapping[int, str]
) -> Iterable[str]:
    absent = [rank for rank in range(world) if rank not in dumps]
    missing = [rank for rank in absent if rank not in unreadable]
    if missing:
        yield f"{rank_list(missing)} left no dump: what {_it(missing)} did is not known"
    if absent and isinstance(done.verdict, Mismatch) and not done.verdict.ranks:
        yield f"which side is at fault: {rank_list(absent)} may have called either"
    late = [rank for rank, dump in dumps.items() if dump.begins_late]
    if late:
        yield (
            f"{rank_list(late)}: the ring was full, so older calls are lost; calls are "
            "compared from where all rings begin"
        )
    if done.is_uncounted:
        yield (
            "a group was made again, and rings were full: how its calls belong together is "
            "not known, so they are not compared"
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
