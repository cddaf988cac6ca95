"""Take the state of all ranks at one instant, as a value for analysis and reports.

Called by the engine while it holds the baton, or after all ranks have stopped, so that nothing
moves meanwhile.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from types import FrameType

from phalanx import callsite
from phalanx.backend.evidence.call_description import (
    TensorReader,
    describe_call,
    describe_wait,
    everyone,
)
from phalanx.backend.evidence.departures import ASKING_TO_END
from phalanx.backend.session import RankContext, Session
from phalanx.callsite import resolve
from phalanx.core.baton import Baton
from phalanx.core.strand import DONE, OUTSIDE, PARKED, RUNNING, Strand
from phalanx.emulation.stdlib.blocking import Blocked
from phalanx.engines.outcome import Outcomes
from phalanx.engines.tests_of_ranks import BetweenTests
from phalanx.errors import text_of
from phalanx.model import Group, Leave, Op, RankView, Site, Snapshot, Status, ViewBlock, Wait
from phalanx.system import current_frames


def take_snapshot(
    session: Session,
    baton: Baton,
    outcomes: Outcomes,
    *,
    stuck: Container[Strand] | None = None,
    reader: TensorReader | None = None,
) -> Snapshot:
    """Every rank by its main thread, and the threads that ranks have started as far as they
    wait. `stuck` are the strands that can never move; all others are shown as moving."""
    frames = current_frames()
    reader = reader or TensorReader()
    views, threads = [], []
    for strand in list(baton.strands):
        if stuck is not None and strand not in stuck and strand.state is not DONE:
            if not strand.helper:
                views.append(RankView(strand.rank, "moving"))
        elif not strand.helper:
            view = _view(session, strand, outcomes, frames.get(strand.ident), reader)
            if stuck is not None and view.status == "outside":
                view = replace(view, status="waiting")
            views.append(view)
        elif strand.state is PARKED or stuck is not None:
            view = _thread_view(session, strand, reader)
            if view.wait is not None:  # an idle worker of a pool waits for nothing
                threads.append(view)
    in_flight = sum(met.in_flight() for met in list(session.mailboxes.values()))
    return Snapshot(tuple(views), in_flight=in_flight, threads=tuple(threads))


MOST_THREADS = 8
DEBUGGERS = {"bdb", "pdb", "IPython.terminal.debugger", "code"}


def user_stacks(baton: Baton) -> dict[int, tuple[Site, ...]]:
    frames = current_frames()
    return {
        strand.rank: callsite.user_stack(frames.get(strand.ident))
        for strand in baton.strands
        if not strand.helper and strand.state is not DONE
    }


def thread_places(session: Session) -> tuple[tuple[tuple[int, ...], Site], ...]:
    """Where threads that ranks have started are, if they are in a line of the program."""
    frames = current_frames()
    places: dict[Site, set[int]] = {}
    for context in session.ranks:
        for thread in list(context.helpers):
            stack = callsite.user_stack(frames.get(thread.ident or 0))
            if thread.is_alive() and stack:
                places.setdefault(stack[-1], set()).add(context.rank)
    found = [(tuple(sorted(ranks)), site) for site, ranks in places.items()]
    return tuple(sorted(found, key=lambda each: (each[0], str(each[1])))[:MOST_THREADS])


def is_debugging(baton: Baton) -> bool:
    """Whether a rank stands at the prompt of a debugger."""
    frames = current_frames()
    for strand in baton.strands:
        frame = frames.get(strand.ident) if strand.state is not DONE else None
        for each in callsite.near_frames(frame):
            if each.f_globals.get("__name__") in DEBUGGERS:
                return True
    return False


def group_views(views: list[RankView]) -> tuple[ViewBlock, ...]:
    """Group ranks in the same situation, in the order of their lowest ranks."""
    blocks: dict[object, list[RankView]] = {}
    for view in views:
        op = view.wait.op if view.wait else None
        key = (
            view.status,
            (op.name, op.group, op.number, op.peer, op.tag, op.key, op.site) if op else None,
            view.wait.needs if view.wait else None,
            view.site,
            view.thread,
            view.left,
        )
        blocks.setdefault(key, []).append(view)
    return tuple(
        ViewBlock(tuple(view.rank for view in alike), alike[0]) for alike in blocks.values()
    )


def _view(
    session: Session,
    strand: Strand,
    outcomes: Outcomes,
    frame: FrameType | None,
    reader: TensorReader,
) -> RankView:
    context: RankContext = strand.local
    if isinstance(strand.why, BetweenTests):
        return _view_between(context, strand.why, reader)
    error = outcomes.ranks[strand.rank].error
    wait = describe_wait(strand, session.size, reader) if strand.state is PARKED else None
    wait = wait or _describe_blocked(strand, session.size)
    return RankView(
        rank=strand.rank,
        status=_status(strand, error),
        thread=context.joining.name if context.joining is not None else None,
        wait=wait,
        last=_last_op(context, reader, strand.why, wait),
        site=_site(strand, frame) if wait is None or wait.op.site is None else None,
        error=None if error is None else _first_line(error),
        left=_left(context) if strand.state is DONE and error is None else None,
    )


def _view_between(context: RankContext, gap: BetweenTests, reader: TensorReader) -> RankView:
    """Of a rank that has ended its test and makes no call before the others have."""
    return RankView(
        rank=context.rank,
        status="finished" if gap.error is None else "failed",
        last=_last_op(context, reader, None, None),
        error=gap.error,
        left=gap.left,
    )


def _left(context: RankContext) -> Leave | None:
    """How a rank that has ended left its program. Signals by which nobody asks it to end do not
    count."""
    left, caught = context.left, context.caught
    if caught not in ASKING_TO_END or (left is not None and left.signal):
        return left
    return replace(left or Leave("return"), signal=caught)


def _thread_view(session: Session, strand: Strand, reader: TensorReader) -> RankView:
    wait = describe_wait(strand, session.size, reader) if strand.state is PARKED else None
    wait = wait or _describe_blocked(strand, session.size)
    return RankView(
        rank=strand.rank,
        status="waiting",
        wait=wait,
        thread=thread_name(strand),
        site=wait.op.site if wait is not None else None,
    )


def thread_name(strand: Strand) -> str | None:
    """What a report calls a thread that a rank started; None for the rank's main one."""
    if not strand.helper:
        return None
    return strand.thread.name if strand.thread is not None else "of a callback"


def _describe_blocked(strand: Strand, size: int) -> Wait | None:
    """What a thread waits for if it is in a wait of Python's own without a timeout."""
    why = strand.why
    if strand.state is not OUTSIDE or not isinstance(why, Blocked):
        return None
    op = Op(strand.rank, why.what, Group("world", everyone(size)), site=resolve(why.mark))
    if why.thread is not None:
        return Wait(op, needs=(), joins=why.thread.name)
    return Wait(op, needs=op.group.ranks, any_of=True) if why.is_waiting else None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}".splitlines()[0]


def _status(strand: Strand, error: BaseException | None) -> Status:
    if strand.state is DONE:
        return "finished" if error is None else "failed"
    if strand.local.joining is not None:
        return "lingering"
    if strand.state is PARKED:
        return "sleeping" if isinstance(strand.why, Blocked) else "waiting"
    if strand.state is OUTSIDE:
        return "outside"
    return "computing" if strand.state is RUNNING else "ready"


def _last_op(
    context: RankContext, reader: TensorReader, why: object, wait: Wait | None
) -> Op | None:
    call = context.last_call
    if call is None:
        return None
    return wait.op if wait is not None and call is why else describe_call(call, reader)


def _site(strand: Strand, frame: FrameType | None) -> Site | None:
    if strand.state is DONE:
        return None
    why = strand.why
    if isinstance(why, Blocked):
        return callsite.resolve(why.mark)
    return callsite.resolve(callsite.mark_of(frame))
