"""What one rank left behind, in one form for every kind of file.

The readers of this folder make `RankDump`s; `dump_replay.py` holds those of all ranks against
each other. Values only. What a file does not tell is None or empty, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.errors import UsageError
from phalanx.model import Site, TensorSpec

MOST_RANKS = 1 << 16
"""A larger number of a rank is taken for a damaged or foreign file."""


class DumpError(UsageError):
    """A file that is no dump, or not one that this version reads: what it is and what to do."""


@dataclass(frozen=True)
class DumpedGroup:
    """A group as one rank has it. `key` is the same for all members and for no other group.
    `ranks` is None where the dump does not tell the members."""

    key: str
    name: str
    ranks: tuple[int, ...] | None
    backend: str = ""
    description: str = ""


@dataclass(frozen=True)
class DumpedCall:
    """One call of a rank, in the order in which it was made.

    `number` counts the collectives on the group, from 0 in every kind of dump; messages have
    none. `root` and `peer` are places in the group; `peer` is None for a receive from any
    source. `done` says that it is complete, None that this is not known. `time` is seconds of
    the wall clock of its machine. A `new_group` has `made`: members and backend.
    """

    name: str
    group: str
    number: int | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    reduce_op: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    site: Site | None = None
    done: bool | None = None
    time: float | None = None
    made: tuple[tuple[int, ...], str] | None = None
    source: int | None = None
    """For a receive from any source that is complete: the place of the sender."""
    stack: tuple[tuple[str, int], ...] = ()
    """Files and lines of the program's frames, innermost first, where the dump has them."""

    @property
    def is_message(self) -> bool:
        return self.tag is not None


@dataclass(frozen=True)
class ThreadStack:
    """Where a thread was: its lines of the program, innermost last. `waits_in` is the place in
    `RankDump.calls` of the call that it was in, `doing` the innermost function, whose ever, and
    `branch` the place of a branch that tests the rank around where it was: None for none, False
    if nobody looked."""

    name: str
    lines: tuple[Site, ...] = ()
    is_main: bool = False
    waits_in: int | None = None
    doing: str = ""
    branch: str | bool | None = False


@dataclass
class RankDump:
    """What one rank left behind.

    `status` is "running", "finished", "failed" or "unknown"; `begins_late` says that older
    calls are lost because a ring was full. `taken` is when the dump was made, in seconds of the
    wall clock. `records_messages` is False where the writer sees collectives only.
    """

    rank: int
    file: str
    kind: str
    groups: dict[str, DumpedGroup] = field(default_factory=dict)
    calls: list[DumpedCall] = field(default_factory=list)
    status: str = "running"
    error: str | None = None
    error_at: Site | None = None
    threads: Sequence[ThreadStack] = ()
    begins_late: bool = False
    taken: float | None = None
    world: int | None = None
    pid: int | None = None
    run: str = ""
    """Equal for the ranks of one start of the program."""
    records_messages: bool = True
    unrecorded: int = 0
    """Calls after the last recorded one that the writer counted and did not record."""
    notes: list[str] = field(default_factory=list)

    @property
    def main(self) -> ThreadStack | None:
        return next((each for each in self.threads if each.is_main), None)

    @property
    def waits_in(self) -> int | None:
        """The place of the call that the rank was waiting in: its main thread's, or, where
        there are no stacks, the first that is not complete."""
        for thread in sorted(self.threads, key=lambda each: not each.is_main):
            if thread.waits_in is not None:
                return thread.waits_in
        if self.threads and any(each.is_main for each in self.threads):
            return None
        return self.first_open

    @property
    def first_open(self) -> int | None:
        """The place of the first call that is known not to be complete."""
        return next((at for at, call in enumerate(self.calls) if call.done is False), None)
