"""What a rank sees when its wait for others has outlived the timeout of the group.

Only in runs with faults: in others nobody waits for a timeout, because ranks that can do
nothing else are reported at once. Gloo: the error says what was waited for, and closes all
connections of the rank in that group. NCCL: the watchdog ends the process
(`nccl_watchdog.py`).
"""

from __future__ import annotations

from typing import Any

from phalanx.backend.losses.injured_mailbox import NCCL, InjuredMailbox, injure
from phalanx.backend.losses.injuries import Injuries
from phalanx.backend.losses.nccl_watchdog import watchdog_error
from phalanx.matching.slots import Call

PAIR_CLOSURE = "Application timeout caused pair closure"


def timeout_error(
    injuries: Injuries, call: Call, timeout: float, *, explicit: bool
) -> Exception | None:
    """The error for a wait that has ended so. None where it is not the backend's: where the
    program named the timeout for this wait of a `Work` (a collective goes on then), and in
    `monitored_barrier`, which has words of its own."""
    is_message = call.name in ("send", "recv")
    if call.parts or call.name == "monitored_barrier" or (explicit and not is_message):
        return None
    met: Any = call.mailbox
    if met.record.backend == NCCL:
        return watchdog_error(call, timeout)
    injured = injure(met, injuries)
    injured.play_open()
    verb = call.name if is_message else _verb(injured, call)
    close_connections(injuries, call, "gave up when its timeout was over")
    return RuntimeError(
        f"Timed out waiting {timeout * 1000:.0f}ms for {verb} operation to complete "
        f"({_who(injured, call)})"
    )


def close_connections(injuries: Injuries, call: Call, why: str) -> None:
    """Gloo closes all connections of a member whose wait has timed out."""
    met = injure(call.mailbox, injuries)
    closed = f"Connection closed by peer (rank {met.ranks[call.member]} {why})"
    met.close_member(call.member, PAIR_CLOSURE, closed)


def _verb(met: InjuredMailbox, call: Call) -> str:
    return "send" if met.step_of(call) else "recv"


def _who(met: InjuredMailbox, call: Call) -> str:
    """What the call was, and which members are not there."""
    if call.name in ("send", "recv"):
        peer = "any rank" if call.peer is None else f"rank {met.ranks[call.peer]}"
        return f"{call.name} {'to' if call.name == 'send' else 'from'} {peer}"
    slot = met.slots.get(-1 if call.number is None else call.number)
    missing = [] if slot is None else [m for m, each in enumerate(slot.calls) if each is None]
    if not missing:
        return call.name
    ranks = ", ".join(str(met.ranks[member]) for member in missing)
    return f"{call.name}; not there: {'ranks' if len(missing) > 1 else 'rank'} {ranks}"
