"""The words of Phalanx: what a run consists of, as frozen values.

Every other module speaks in these words, so this docstring is the glossary.

rank       one participant of the program, numbered from 0 in the world
world      all ranks of one run
group      an ordered set of ranks that communicate; the first one is the world itself
op         one call of one rank: `all_reduce` with its arguments, made at a site
collective the ops of all members of a group that belong together
slot       the place where the ops of one collective meet, numbered per group: "call #12"
site       the user's file, line and function that made a call
wait       what a blocked rank needs before it can go on
snapshot   all ranks at one instant
verdict    what a check found
referee    decides mismatches and deadlocks, for every engine
mailbox    where the calls of one group meet: its slots and its messages
journal    what happened in a run, as a stream of events
mark       a call site that is not resolved to file and line yet
strand     a thread that the baton knows
schedule   the policy that says who runs next
baton      the right to run; exactly one rank holds it

Three words are never mixed: a *mismatch* is a disagreement between calls, a *deadlock* is
proved (nobody can move), a *stall* means that time ran out and nothing is proved.

This module imports no other one of ours. It must never hold behaviour beyond naming its own
parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Status = Literal[
    "waiting",
    "sleeping",
    "ready",
    "computing",
    "outside",
    "holding",
    "lingering",
    "moving",
    "finished",
    "failed",
]
Severity = Literal["error", "warning"]
Kind = Literal[
    "invalid-call",
    "mismatch",
    "deadlock",
    "stall",
    "rank-failed",
    "in-flight-buffer",
    "unwaited-work",
    "unmatched-message",
    "crossed-order",
    "lost-result",
    "backend-hazard",
    "message-race",
    "thread-race",
    "rank-space",
    "replica-drift",
    "leak",
    "different-results",
    "invariant",
    "uncontrolled-chance",
]
Names = tuple[tuple[str, str], ...]
Cause = Literal["cycle", "finished-peer", "failed-peer", "nobody-can"]


@dataclass(frozen=True)
class Site:
    """Where in the user's program a call was made."""

    file: str
    line: int
    function: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class StackLine:
    """A line on the way to a call; `installed` if a library has it, not the user's program."""

    site: Site
    installed: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """What matters of a tensor for matching and for a report. `strides` are there if its
    elements do not follow each other in memory in the usual order."""

    dtype: str
    shape: tuple[int, ...]
    device: str = "cpu"
    strides: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return f"{text} strides {self.strides}" if self.strides else text


@dataclass(frozen=True)
class Group:
    """A group as a report names it: `ranks` are ranks of the world, in group order; none if
    the members are not known."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One call of one rank.

    `number` counts the collectives this rank has called on the group before (None for
    point to point and for store calls). `root` and `peer` are ranks of the world. `peer` is
    None for a receive from any source. `inputs` and `outputs` list the tensors given; a list
    that only the root passes is empty elsewhere.
    """

    rank: int
    name: str
    group: Group
    number: int | None = None
    root: int | None = None
    reduce_op: str | None = None
    peer: int | None = None
    tag: int | None = None
    key: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    site: Site | None = None


@dataclass(frozen=True)
class Wait:
    """What a blocked rank needs: all of `needs`, or any one of them if `any_of`.

    `near` says what ranks did that came close but is not the thing needed (another tag,
    another group). `joins` names the thread of its own that has to end, for a rank that joins
    one. It is `robbed` if a receive from any source by the same rank had its message.
    """

    op: Op
    needs: tuple[int, ...]
    any_of: bool = False
    near: tuple[str, ...] = ()
    joins: str | None = None
    robbed: bool = False


@dataclass(frozen=True)
class Leave:
    """How a rank left its program without an error: by a `return` of the function `site` is in,
    by `sys.exit` or `os._exit` there, at the `end` of its script or of the function `site` is
    in; or that it was `killed` there, as a plan of faults says. `signal` is the one in whose
    handler it left, or that it had caught before."""

    how: Literal["return", "exit", "os-exit", "end", "killed"]
    site: Site | None = None
    signal: str | None = None


@dataclass(frozen=True)
class RankView:
    """One rank in a snapshot. `last` is the last op it issued; `error` is set if it failed, and
    `left` says how it finished, where that is known.

    A rank whose calls nobody records (`traced` is false) has no `last`, and of `wait` only
    the name of the call is known. One that is *lingering* has returned, but `thread`, which it
    started, has not. One that is *moving* can go on, whatever it does: nothing more is said
    of it where others cannot.
    """

    rank: int
    status: Status
    wait: Wait | None = None
    last: Op | None = None
    site: Site | None = None
    error: str | None = None
    traced: bool = True
    thread: str | None = None
    left: Leave | None = None


@dataclass(frozen=True)
class Snapshot:
    """All ranks at one instant. `in_flight` counts messages sent and not yet received.

    `threads` are those that ranks have started, each with its name as `thread`: they may act
    for their rank.
    """

    ranks: tuple[RankView, ...]
    in_flight: int = 0
    timers: int = 0
    threads: tuple[RankView, ...] = ()


@dataclass(frozen=True)
class Meeting:
    """The ops that met, or have met so far, in one slot; and what went before.

    `members` is the whole group; ranks without an op in `ops` have not arrived.
    `history` maps a rank to its earlier ops on this group, oldest first, as far as kept.
    """

    group: Group
    number: int
    ops: tuple[Op, ...]
    history: dict[int, tuple[Op, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OpBlock:
    """Ranks that did the same thing. `odd` marks those the majority does not agree with."""

    ranks: tuple[int, ...]
    op: Op
    odd: bool = False


@dataclass(frozen=True)
class ViewBlock:
    """Ranks that are in the same situation; `view` is that of the lowest of them."""

    ranks: tuple[int, ...]
    view: RankView


@dataclass(frozen=True)
class Caller:
    """The line of the user's code from which ranks came to `call`, a line of a library or of
    another function that makes the collective call for many."""

    ranks: tuple[int, ...]
    call: Site
    site: Site


@dataclass(frozen=True)
class Handling:
    """What one rank handles in an `except`, a `finally` or a `with`: the error, the line of the
    program that raised it, and the line `at` which the rank stands or makes its call."""

    error: str
    site: Site
    at: Site | None


@dataclass(frozen=True)
class HandledError:
    """An error that ranks were handling, in an `except`, a `finally` or a `with`, when they
    made the call that a verdict is about. `site` is the line of the program that raised it.
    It is a `cause` if ranks that were not handling one did something else."""

    ranks: tuple[int, ...]
    error: str
    site: Site
    cause: bool = False


@dataclass(frozen=True)
class Verdict:
    """What every verdict has. `ranks` are those at fault; empty if that cannot be decided.
    `names` is what could be said about parameters, modules and stages: labels and texts.
    `handled` are errors that ranks had on their hands meanwhile, `callers` the lines from which
    they called a function that made the call."""

    kind: Kind
    severity: Severity
    ranks: tuple[int, ...]
    names: Names = field(default=(), kw_only=True)
    handled: tuple[HandledError, ...] = field(default=(), kw_only=True)
    callers: tuple[Caller, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class LineCount:
    """How often ranks called from a line: `ranks`, the line, and how often."""

    ranks: tuple[int, ...]
    site: Site
    times: int


@dataclass(frozen=True)
class Uneven:
    """Ranks made unequally many calls of a kind that all make alike.

    `places` are those where the numbers differ, each with a count for every rank, counted from
    call `since` on the group. `together` is the last call in which all were at the first of
    them. `went` says where those who came there less often are now, None for no further call;
    `past` are branches in the source that lead past it.
    """

    group: Group
    places: tuple[tuple[LineCount, ...], ...]
    since: int = 0
    together: int | None = None
    went: tuple[tuple[tuple[int, ...], Site | None], ...] = ()
    past: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Absence:
    """`absent`, members of a group, have not come to a call on it in which `waiting` wait. They
    made `made` calls on it; `instead` is the call in which they wait, None if they have ended.
    `past` are branches in the source that lead past that call."""

    group: Group
    number: int
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    made: int
    instead: Op | None = None
    past: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Mismatch(Verdict):
    """The calls that met disagree. `agreed` is the last op before it that all ranks shared;
    `from_lines` says from where, if ranks called it from several lines.

    `missing` are members that had not arrived when nobody could move any more. Calls are
    `unrelated` if they come from lines that are not meant to meet.
    """

    group: Group
    number: int | None
    blocks: tuple[OpBlock, ...]
    differs: tuple[str, ...]
    agreed: Op | None = None
    missing: tuple[int, ...] = ()
    hint: str | None = None
    parted: str | None = None
    from_lines: tuple[tuple[tuple[int, ...], Site], ...] = ()
    uneven: Uneven | None = None
    unrelated: bool = False


@dataclass(frozen=True)
class Deadlock(Verdict):
    """Ranks that can never move again: proved. Blocks come in the order a reader needs them.
    It is *partial* if others can still move; `parted` says where the ranks' ways parted."""

    cause: Cause
    cycle: tuple[int, ...]
    blocks: tuple[ViewBlock, ...]
    blocked: int
    total: int
    in_flight: int = 0
    hint: str | None = None
    parted: str | None = None
    uneven: Uneven | None = None
    absence: Absence | None = None

    @property
    def partial(self) -> bool:
        return any(block.view.status == "moving" for block in self.blocks)

    @property
    def missed(self) -> tuple[int, ...]:
        """Ranks that have returned and that others wait for, at fault or not."""
        gone = {r for b in self.blocks if b.view.status == "finished" for r in b.ranks}
        waits = [b.view.wait for b in self.blocks if b.view.status == "waiting"]
        return tuple(sorted(gone.intersection(r for w in waits if w for r in w.needs)))


@dataclass(frozen=True)
class Stall(Verdict):
    """Time ran out; `stacks` maps each rank to its user frames, innermost last.

    `over_limit` says that the time was a limit on the whole run: ranks may have moved.
    """

    seconds: float
    blocks: tuple[ViewBlock, ...]
    stacks: dict[int, tuple[Site, ...]] = field(default_factory=dict)
    over_limit: bool = False
    locked: bool = False
    """Whether no thread could run, because code held Python's lock: that of `ranks`."""
    pending: tuple[Op, ...] = ()
    """What ranks that are not waiting have begun, and nobody has answered."""
    threads: tuple[tuple[tuple[int, ...], Site], ...] = ()
    """Where threads are that ranks have started."""
    awaited: str = ""
    """What was waited for, if that was no rank."""


@dataclass(frozen=True)
class RankFailure(Verdict):
    """Ranks raised; the others were stopped where `stopped` says.

    `raised` groups ranks by what they raised; `late` holds what ranks raised while they
    were being stopped, which is a consequence and never the cause; `stuck` names ranks
    that could not be stopped. `calls` tells of ranks whose own call was wrong; if that came
    first, the kind is `invalid-call`.
    """

    raised: tuple[tuple[tuple[int, ...], str], ...]
    sites: dict[int, Site]
    stopped: tuple[ViewBlock, ...]
    late: tuple[tuple[int, str], ...] = ()
    stuck: tuple[tuple[int, Site | None], ...] = ()
    calls: dict[int, Finding] = field(default_factory=dict)


@dataclass(frozen=True)
class Unmet(Verdict):
    """The run ended, and ops that ranks had begun never met their counterpart.

    Messages are `unmatched-message`; a collective that some members never called can only
    have been asynchronous and left alone: `unwaited-work`. `needs` are the ranks that did not
    come, `near` what came close (another tag); `notes` are about the report itself.
    """

    blocks: tuple[OpBlock, ...]
    needs: tuple[int, ...]
    near: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CallBlock:
    """Ranks, one call of theirs, and what is to be said about it."""

    ranks: tuple[int, ...]
    op: Op
    notes: tuple[str, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class Finding(Verdict):
    """What every kind without a form of its own has: a headline that is whole on its own, the
    calls concerned, lines with a label ("rule", "agreed", "would"), and a hint."""

    headline: str
    blocks: tuple[CallBlock, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    hint: str | None = None


@dataclass(frozen=True)
class Silenced:
    """A finding that the program's own line silences, and why."""

    kind: Kind
    reason: str
    site: Site


@dataclass(frozen=True)
class Tally:
    """How much was checked in a run. `None`: the engine does not know."""

    ranks: int
    collectives: int | None = None
    messages: int | None = None
    groups: int | None = None
    silenced: tuple[Silenced, ...] = ()
    raised: tuple[Verdict, ...] = ()
    """Errors of ours that ranks met with, whether the program caught them or not."""
    happened: tuple[str, ...] = ()
    """The faults of the plan that happened."""
    worlds: int = 1
    """How many worlds are summed up; `ranks` is then the size of the largest."""


@dataclass(frozen=True)
class Restart:
    """All ranks start again, because of what has happened to some."""

    number: int
    """From 1."""
    most: int
    """How many there may be."""
    why: str
    """The first line of the report of the attempt that failed."""
    site: Site | None
    """Where the first rank failed."""
    ranks: int
    """How many start."""
    fewer: bool = False
    """Whether these are fewer than before."""


def rank_list(ranks: Iterable[int], *, width: int = 40) -> str:
    """Ranks as text: sorted, runs as ranges, cut where longer than `width`.

    >>> rank_list([5, 2, 1, 0])
    'ranks 0-2, 5'
    >>> rank_list(range(0, 1024, 2), width=32)
    'ranks 0, 2, 4, ... (512 ranks)'
    """
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    parts = _runs(ordered)
    text = "ranks " + ", ".join(parts)
    if len(text) <= width:
        return text
    tail = f", ... ({len(ordered)} ranks)"
    kept = parts[:1]
    for part in parts[1:]:
        if len("ranks " + ", ".join([*kept, part]) + tail) > width:
            break
        kept.append(part)
    return "ranks " + ", ".join(kept) + tail


def _runs(ordered: Sequence[int]) -> list[str]:
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    return parts
