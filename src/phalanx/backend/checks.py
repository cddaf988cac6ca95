"""What met is judged here: the place where checks stand between calls and their effect.

Used by the process group when a slot is complete or a message finds its receive. Calls are
translated into the words of `phalanx.model`; deciding is done in `analysis/`, wording in
`report/`. The answer is one error for each call, or None.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.analysis.matching import find_mismatch, find_pair_mismatch
from phalanx.backend.describe import describe_call, describe_past, group_of
from phalanx.backend.session import Session
from phalanx.core.meeting import Call, Slot
from phalanx.model import Meeting


def meeting_of(slot: Slot) -> Meeting:
    """The slot, whether complete or not, as a value for the analysis."""
    calls = [call for call in slot.calls if call is not None]
    met = calls[0].assembly
    return Meeting(
        group=group_of(met),
        number=slot.number,
        ops=tuple(describe_call(call) for call in calls),
        history={
            rank: tuple(
                describe_past(met, rank, past)
                for past in met.history[member]
                if past[0] < slot.number
            )
            for member, rank in enumerate(met.ranks)
        },
    )


def judge_meeting(session: Session, slot: Slot) -> Sequence[Exception] | None:
    wanted = "mismatch" in session.kinds
    verdict = find_mismatch(meeting_of(slot)) if wanted else None
    return session.report(verdict).for_each(len(slot.calls)) if verdict else None


def judge_message(session: Session, send: Call, receive: Call) -> Sequence[Exception] | None:
    sent, wanted = send.inputs[0], receive.outputs[0]
    if sent.dtype == wanted.dtype and sent.numel() == wanted.numel():
        return None
    verdict = find_pair_mismatch(describe_call(send), describe_call(receive))
    return session.report(verdict).for_each(2) if verdict else None
