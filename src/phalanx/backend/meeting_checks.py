"""What met is judged here: the place where checks stand between calls and their effect.

Used by the process group when a slot is complete or a message finds its receive. Calls are
translated into the words of `phalanx.model`; deciding is done in `checks/`, wording in
`report/`. The answer is one error for each call, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phalanx.backend.evidence.call_description import LookCache, describe_call, describe_past
from phalanx.backend.evidence.call_history import with_parting
from phalanx.backend.session import Session
from phalanx.errors import VerdictError
from phalanx.matching.agreement import find_mismatch, find_pair_mismatch
from phalanx.matching.slots import Assembly, Call, Slot
from phalanx.model import Meeting, Mismatch, Op, Verdict

MOST_PAST = 4096
LEAST_PAST = 4
"""How many earlier calls are described: of all ranks together, and of each at least."""


def find_slot_mismatch(slot: Slot) -> Mismatch | None:
    """What the calls in a slot, complete or not, disagree in. What went before is described
    only if they do: calls that differ and still agree are common (uneven lists)."""
    calls = [call for call in slot.calls if call is not None]
    met = calls[0].assembly
    known = LookCache()
    ops = tuple(describe_call(call, known) for call in calls)
    meeting = Meeting(known.group(met), slot.number, ops)
    if find_mismatch(meeting) is None:
        return None
    return find_mismatch(replace(meeting, history=_history(met, slot.number, known)))


def _history(met: Assembly, number: int, known: LookCache) -> dict[int, tuple[Op, ...]]:
    most = max(LEAST_PAST, MOST_PAST // met.size)
    return {
        rank: tuple(
            describe_past(met, rank, past, known)
            for past in [past for past in met.history[member] if past[0] < number][-most:]
        )
        for member, rank in enumerate(met.ranks)
    }


def judge_meeting(session: Session, slot: Slot) -> Sequence[Exception] | None:
    verdict = find_slot_mismatch(slot) if "mismatch" in session.kinds else None
    if verdict is None:
        return None
    verdict = with_parting(session, verdict, verdict.group.ranks)
    return session.report(verdict).for_each(len(slot.calls))


def judge_message(session: Session, send: Call, receive: Call) -> Sequence[Exception] | None:
    sent, wanted = send.inputs[0], receive.outputs[0]
    if sent.dtype == wanted.dtype and sent.numel() == wanted.numel():
        return None
    verdict = find_pair_mismatch(describe_call(send), describe_call(receive))
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
