"""A recording of ours as one dump for each rank, so that it is explained like any other.

Used where a recording does not say how the run ended: it was killed, or is still going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.explain.rank_dump import DumpedCall, DumpedGroup, RankDump, ThreadStack
from phalanx.journal.recording.decoder import Recording
from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls, calls_table

MOVES = ("posted", "met", "completed", "wait-began", "wait-ended", "withdrawn", "rank-ended")
"""Events of a rank that does something, or goes on."""
OWN_THREADS = (0, 1)
"""A rank's own thread, and callbacks that run in it."""
_ONE_SIDED = frozenset(
    {"all_to_all", "all_to_all_single", "all_gather", "gather", "scatter", "reduce_scatter"}
)
"""Of these a recording has the tensors of one side, and how they fit follows from both."""


@dataclass(frozen=True)
class RecordedRun:
    """`still` is for how many seconds no rank had moved when the last event was written.
    `has_gaps` says that events are missing in between, `has_threads` that ranks make calls in
    several threads, of which others than the one that waits may go on."""

    dumps: Mapping[int, RankDump]
    still: float
    has_gaps: bool
    has_threads: bool


def read_recording(recording: Recording, name: str) -> RecordedRun:
    blocks = recording.of_kind(*MOVES)
    moved = max((max(block["time"], default=0) for block in blocks), default=0)
    threads = {each for block in recording.of_kind("posted") for each in block["thread"]}
    return RecordedRun(
        dumps_of_recording(recording, name),
        still=(recording.duration - moved) / 1e9,
        has_gaps=recording.dropped > 0,
        has_threads=not threads.issubset(OWN_THREADS),
    )


def dumps_of_recording(recording: Recording, name: str) -> dict[int, RankDump]:
    """By rank."""
    table = calls_table(recording)
    groups = {
        f"{number}": DumpedGroup(
            f"{number}",
            "0" if record.name == "world" else record.name.removeprefix("group "),
            record.ranks,
            record.backend,
            record.description,
        )
        for number, record in recording.groups.items()
    }
    ended = _endings(recording)
    started = recording.header.get("started")
    begun = float(started) if isinstance(started, (int, float)) else 0.0
    found = {}
    for calls in table.ranks:
        how, error = ended.get(calls.rank, ("running", None))
        dump = RankDump(calls.rank, name, "recording", groups, world=recording.ranks)
        dump.calls = [_call(table, calls, at, begun) for at in range(len(calls))]
        dump.taken = begun + recording.duration / 1e9
        dump.begins_late = bool(calls.first)
        dump.status, dump.error = how, error
        dump.threads = [_main_thread(calls)] if how == "running" else ()
        found[calls.rank] = dump
    return found


def _endings(recording: Recording) -> dict[int, tuple[str, str | None]]:
    """Who ended, and how. One that was stopped because another failed was still running."""
    found: dict[int, tuple[str, str | None]] = {}
    for block in recording.of_kind("rank-ended"):
        for how, error in zip(block["how"], block["error"], strict=True):
            if how in ("finished", "failed"):
                found[block.rank] = str(how), str(error) if how == "failed" else None
    return found


def _call(table: CallsTable, calls: RankCalls, at: int, begun: float) -> DumpedCall:
    recording = table.recording
    group = recording.groups[calls.group[at]]
    place = {rank: where for where, rank in enumerate(group.ranks)}
    name = table.ops[calls.op[at]]
    bare = calls.tensors[at] == NONE or name in _ONE_SIDED
    specs = () if bare else recording.tensors[calls.tensors[at]]
    message = calls.number[at] == NONE
    receives = name == "recv"
    return DumpedCall(
        name=name,
        group=str(group.number),
        number=None if message else calls.number[at],
        root=place.get(calls.root[at]),
        peer=place.get(calls.peer[at]),
        tag=max(0, calls.tag[at]) if message else None,
        inputs=() if receives else specs,
        outputs=specs if receives else (),
        site=None if calls.site[at] == NONE else recording.sites[calls.site[at]].site,
        done=calls.met[at] != NEVER,
        time=begun + calls.start[at] / 1e9,
    )


def _main_thread(calls: RankCalls) -> ThreadStack:
    """The last call of the rank's own that it waits for."""
    for at in range(len(calls) - 1, -1, -1):
        waits = calls.waiting[at] != NEVER and calls.resumed[at] == NEVER
        if waits and calls.met[at] == NEVER:
            return ThreadStack("main", (), is_main=True, waits_in=at)
    return ThreadStack("main", (), is_main=True)
