"""Ask the referee about calls that meet, and turn what it finds into errors.

Used by the process group when a slot is complete or a message finds its receive. The answer is
one error for each call, or None.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.backend.evidence.call_history import RankEvidence
from phalanx.backend.session import Session
from phalanx.errors import VerdictError
from phalanx.matching.slots import Call, Slot
from phalanx.model import Verdict


def judge_meeting(session: Session, slot: Slot) -> Sequence[Exception] | None:
    verdict = session.referee.find_slot_mismatch(slot, RankEvidence(session.ranks))
    return session.report(verdict).for_each(len(slot.calls)) if verdict else None


def judge_message(session: Session, send: Call, receive: Call) -> Sequence[Exception] | None:
    sent, wanted = send.inputs[0], receive.outputs[0]
    if sent.dtype == wanted.dtype and sent.numel() == wanted.numel():
        return None
    evidence = RankEvidence(session.ranks)
    verdict = session.referee.find_message_mismatch(send, receive, evidence)
    return session.report(verdict).for_each(2) if verdict else None


def note_unheard(session: Session, errors: Sequence[Exception], calls: Sequence[Call]) -> None:
    """Operations end with an error of ours; those who asked for a `Work` may never look."""
    if isinstance(errors[0], VerdictError) and all(call.asynchronous for call in calls):
        session.unheard.append((errors, calls))


def find_unheard(session: Session) -> list[Verdict]:
    """Errors that no rank has met with: nobody waited for the operations."""
    if not session.unheard:
        return []
    left, session.unheard = session.unheard, []
    found = []
    for errors, calls in left:
        heard = any(error.__traceback__ is not None for error in errors)
        verdict = getattr(errors[0], "verdict", None)
        if verdict is not None and not heard and not any(call.waited for call in calls):
            found.append(verdict)
    return found
