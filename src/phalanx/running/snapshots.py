"""Take the state of all ranks at one instant, as a value for analysis and reports.

Called by the engine with the baton in hand (or after everybody stopped), so nothing moves.
"""

from __future__ import annotations

import sys
from types import FrameType

from phalanx import callsite
from phalanx.backend.describe import describe_call, describe_wait
from phalanx.backend.session import RankContext, Session
from phalanx.core.baton import DONE, OUTSIDE, PARKED, RUNNING, Baton, Strand
from phalanx.errors import text_of
from phalanx.model import Op, RankView, Site, Snapshot, Status, ViewBlock
from phalanx.running.calls import Blocked
from phalanx.running.outcome import Outcomes


def take_snapshot(session: Session, baton: Baton, outcomes: Outcomes) -> Snapshot:
    """Every rank by its main thread; a helper thread that waits speaks for its rank if the
    main thread has ended or waits for nothing we know."""
    frames = sys._current_frames()
    views = tuple(
        _view(session, strand, outcomes, frames.get(strand.ident))
        for strand in baton.strands
        if not strand.helper
    )
    in_flight = sum(met.in_flight() for met in session.assemblies.values())
    return Snapshot(views, in_flight=in_flight)


DEBUGGERS = {"bdb", "pdb", "IPython.terminal.debugger", "code"}


def user_stacks(baton: Baton) -> dict[int, tuple[Site, ...]]:
    frames = sys._current_frames()
    return {
        strand.rank: callsite.user_stack(frames.get(strand.ident))
        for strand in baton.strands
        if not strand.helper and strand.state is not DONE
    }


def is_debugging(baton: Baton) -> bool:
    """Whether a rank stands at the prompt of a debugger."""
    frames = sys._current_frames()
    for strand in baton.strands:
        frame = frames.get(strand.ident) if strand.state is not DONE else None
        while frame is not None:
            if frame.f_globals.get("__name__") in DEBUGGERS:
                return True
            frame = frame.f_back
    return False


def group_views(views: list[RankView]) -> tuple[ViewBlock, ...]:
    """Ranks in the same situation side by side, in order of their lowest rank."""
    blocks: dict[object, list[RankView]] = {}
    for view in views:
        op = view.wait.op if view.wait else None
        key = (
            view.status,
            (op.name, op.group, op.number, op.peer, op.tag, op.key, op.site) if op else None,
            view.wait.needs if view.wait else None,
            view.site,
            view.thread,
        )
        blocks.setdefault(key, []).append(view)
    return tuple(
        ViewBlock(tuple(view.rank for view in alike), alike[0]) for alike in blocks.values()
    )


def _view(
    session: Session, strand: Strand, outcomes: Outcomes, frame: FrameType | None
) -> RankView:
    context: RankContext = strand.local
    error = outcomes.ranks[strand.rank].error
    wait = describe_wait(strand, session.size) if strand.state is PARKED else None
    return RankView(
        rank=strand.rank,
        status=_status(strand, error),
        thread=context.joining.name if context.joining is not None else None,
        wait=wait,
        last=_last_op(context),
        site=_site(strand, frame),
        error=None if error is None else _first_line(error),
    )


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


def _last_op(context: RankContext) -> Op | None:
    return describe_call(context.last_call) if context.last_call is not None else None


def _site(strand: Strand, frame: FrameType | None) -> Site | None:
    if strand.state is DONE:
        return None
    why = strand.why
    if isinstance(why, Blocked):
        return callsite.resolve(why.mark)
    stack = callsite.user_stack(frame)
    return stack[-1] if stack else None
