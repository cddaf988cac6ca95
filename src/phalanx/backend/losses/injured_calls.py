"""How calls of a group that has lost something end: with which error, or with which data.

Used by `injured_mailbox.py`, and by the ends of such a group, whose `_submit` and `_exchange`
are replaced here (`take_over`). The error is the one that torch raises on Gloo: a plain
`RuntimeError`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from phalanx.backend.collectives.data_movement import MoveData
from phalanx.backend.losses.call_tensors import copied, flat
from phalanx.backend.torch_private.private import no_function_modes
from phalanx.backend.work import buffer_guard
from phalanx.backend.work.steps import note_heard
from phalanx.core.strand import here
from phalanx.journal.events import Completed, make
from phalanx.matching.slots import Call, Slot

if TYPE_CHECKING:
    from phalanx.backend.work.work import OpWork

ROOT_NEEDS_ALL = ("gather", "reduce")
ONE_FROM_ROOT = ("broadcast", "scatter")
ONE_BY_ONE = (*ONE_FROM_ROOT, "gather")
"""In which a member may be through before all have come."""


def take_over(end: Any) -> None:
    """From now on the calls of this rank's end of the group pass here; others are not slowed
    down by it."""
    end._submit = partial(_submit, end)
    end._exchange = partial(_exchange, end)


def _submit(end: Any, call: Call, move_data: MoveData, opts: Any, sample: Any) -> OpWork | None:
    """In the place of `Endpoint._submit`: its group may need later what moves the data."""
    met: Any = call.mailbox
    met.moves[met.next_number[call.member]] = move_data
    work: OpWork | None = type(end)._submit(end, call, move_data, opts, sample)
    return work


def _exchange(end: Any, call: Call, sample: Tensor) -> OpWork:
    """In the place of `Endpoint._exchange`: Gloo refuses a message to a closed end at once."""
    work: OpWork = type(end)._exchange(end, call, sample)
    if type(call.error) is RuntimeError:
        call.waited = True
        raise call.error
    return work


def is_late(call: Call) -> bool:
    """Whether the timeout of a rank that waits for it is over, which it is about to say."""
    return any(strand.timed_out for strand in call.waiters or ())


def payload_of(call: Call) -> tuple[int, int]:
    """How many elements it moves, and their size in bytes."""
    tensors = list(flat(call.inputs)) or list(flat(call.outputs))
    return sum(t.numel() for t in tensors), max((t.element_size() for t in tensors), default=1)


def complete_part(slot: Slot, call: Call, move_data: Callable[..., None] | None) -> None:
    """One member is through, others may not be: it gets what is its own."""
    root = None if call.root is None else slot.calls[call.root]
    error = None
    try:
        if call.name in ONE_FROM_ROOT:
            if root is not None:
                _take_from_root(call, root)
        elif call.name not in ROOT_NEEDS_ALL or root is call:
            _move_once(slot, move_data)
    except Exception as problem:
        error = problem
    end(slot, call, error)


def note_end(slot: Slot) -> None:
    """All members are through, in one way or the other: for the journal."""
    calls = _there(slot)
    mover = (here.strand or calls[-1].strand).local
    failed = any(call.error is not None for call in calls)
    record = calls[-1].mailbox.record
    mover.ring.flowed += 1
    event = (mover.now(), mover.rank, 0, None, record, slot.number, (), failed)
    mover.ring.flow.append(make(Completed, event))


def _take_from_root(call: Call, root: Call) -> None:
    if call.stamp is not None:
        note_heard((call, root))
    with _guarded([call]):
        if call.name == "scatter":
            source = root.inputs[call.member]
            call.outputs[0].data.copy_(source.data.reshape(call.outputs[0].shape))
        elif root is not call and call.member != root.member:
            for target, source in zip(call.inputs, root.inputs, strict=True):
                target.data.copy_(source.data)


@contextmanager
def _guarded(calls: list[Call]) -> Iterator[None]:
    """What the guard of buffers in flight does when data moves."""
    in_flight = any(call.flight is not None for call in calls)
    error = buffer_guard.before_moving(calls) if in_flight else None
    if error is not None:
        raise error
    with no_function_modes():
        yield
    if in_flight:
        buffer_guard.after_moving(calls)


def _move_once(slot: Slot, move_data: Callable[..., None] | None) -> None:
    """For all members at once, when the first of them is through."""
    if move_data is None or getattr(slot.calls[0], "is_moved", False):
        return
    with _guarded(_there(slot)):
        move_data(slot.calls)
    for call in _there(slot):
        call.is_moved = True  # type: ignore[attr-defined]


def end(slot: Slot, call: Call, error: BaseException | None) -> None:
    """One member is through. Its rank goes on, and may change its tensors while others still
    need what was in them: another call stands for it in the slot."""
    call.finish(error)
    stand_in = slot.calls[call.member] = copy.copy(call)
    stand_in.flight = None
    with no_function_modes():  # a mode of the program's thread is not to see it
        stand_in.inputs, stand_in.outputs = copied(call.inputs), copied(call.outputs)


def _there(slot: Slot) -> list[Call]:
    return [call for call in slot.calls if call is not None]
