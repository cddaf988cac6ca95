"""Backend hazard: what passed where it ran, and what the backend asked for may hang on, mix up
or refuse.

When a run has ended, the journal becomes a trace for the rules of `nccl_*.py`: under
`profile="nccl"` of all groups, or, if the program asks for NCCL itself, of those groups;
without a profile of what went over NCCL. What a profile's backend would refuse by dtype, reduce
op or layout is noted at the call (`backend/profiles/second_opinion.py`), since the journal has
no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from phalanx.checks.nccl_rules.nccl_hazards import (
    Hazard,
    Issued,
    Law,
    NcclTrace,
    as_findings,
    find_first_batches,
    find_refused_calls,
    find_shared_devices,
)
from phalanx.checks.nccl_rules.nccl_messages import find_message_hazards, traffic_of
from phalanx.checks.nccl_rules.nccl_order import find_orders
from phalanx.journal.events import GroupMade, GroupRecord, Noted, Posted, Withdrawn
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import Finding, Op, Severity

KIND = "backend-hazard"
NCCL = "nccl"
_LONGEST = 80
"""Of a headline."""


class Machines(Protocol):
    """What this check asks of the engine besides the journal."""

    @property
    def profile(self) -> str | None: ...

    def machine_of(self, rank: int) -> int:
        """Ranks of one machine have the same number."""

    def must_share_gpus(self) -> bool:
        """Whether there are fewer GPUs than ranks, so that sharing one means nothing."""


@dataclass(frozen=True)
class RefusedCall:
    """A call that the profile's backend would not take. `effect` is what that would do, such as
    `refuses`."""

    law: Law
    effect: str
    op: Op


def find_backend_hazards(journal: Journal, host: Machines) -> Iterator[Finding]:
    severity: Severity = "error" if host.profile else "warning"
    hazards = _refused(journal, host.profile or "")
    yield from as_findings(hazards, _describe, severity)
    if host.profile in (None, NCCL) and (host.profile or _has_nccl(journal)):
        trace = _trace_of(journal, host.profile)
        if trace is not None:
            yield from as_findings(_hazards_in(trace, host), _describe, severity)


def _hazards_in(trace: NcclTrace, host: Machines) -> Iterator[Hazard]:
    traffic = traffic_of(trace)
    yield from find_orders(trace, traffic)
    yield from find_message_hazards(trace, traffic)
    yield from find_first_batches(trace)
    yield from find_refused_calls(trace)
    yield from find_shared_devices(_devices_in(trace, host), host.machine_of)


# -- from the journal to a trace -----------------------------------------------------------


def _has_nccl(journal: Journal) -> bool:
    """Whether the program asked for NCCL at all."""
    made = (event.group for event in journal.rare(GroupMade))
    return any(NCCL in group.backend for group in (*journal.groups, *made))


def _trace_of(journal: Journal, profile: str | None) -> NcclTrace | None:
    """None if nothing can be said: of which thread a call was is not known."""
    everything = [journal.calls(rank) for rank in range(journal.ranks)]
    if any(call.thread < 0 for calls in everything for call in calls):
        return None
    choose = _chooser(journal, everything, profile)
    withdrawn = {event.call for event in journal.rare(Withdrawn)}
    groups: dict[GroupRecord, int] = {}
    ranks = [
        tuple(_issued(call, groups) for call in calls if choose(call))
        if not withdrawn
        else tuple(
            _issued(call, groups)
            for call in calls
            if choose(call) and call.call not in withdrawn
        )
        for calls in everything
    ]
    return NcclTrace(
        groups=tuple(group.as_group() for group in groups),
        ranks=tuple(ranks),
        whole=journal.has_all_calls(),
        eager=frozenset(i for group, i in groups.items() if group.eager or group.used),
    )


def _chooser(
    journal: Journal, everything: Iterable[Iterable[Posted]], profile: str | None
) -> Callable[[Posted], bool]:
    """Which calls are NCCL's, or stand for such."""
    asked = {call.group for calls in everything for call in calls}
    by_name = {group for group in asked if NCCL in group.backend}
    if profile == NCCL:
        chosen = by_name if _has_nccl(journal) else asked
        return lambda call: call.group in chosen
    on_gpu = {c.group for calls in everything for c in calls if c.device is not None}
    purely = {group for group in by_name if "gloo" not in group.backend}
    mixed = (by_name - purely) & on_gpu
    return lambda call: (
        call.group in purely
        or (call.group in mixed and (call.device is not None or call.name == "barrier"))
    )


def _issued(call: Posted, groups: dict[GroupRecord, int]) -> Issued:
    group = call.group
    return Issued(
        call.rank,
        call.thread,
        groups.setdefault(group, len(groups)),
        call.name,
        call.number,
        None if call.peer is None else group.ranks[call.peer],
        call.tag,
        call.batch,
        call.mark,
        call,
    )


def _describe(call: Issued) -> Op:
    found: Op | Posted = call.posted
    return found if isinstance(found, Op) else found.as_op()


def _devices_in(trace: NcclTrace, host: Machines) -> dict[int, dict[int, Issued]]:
    """The GPUs that each rank used."""
    used: dict[int, dict[int, Issued]] = {}
    for calls in trace.ranks:
        for call in calls:
            if call.posted.device is not None:
                used.setdefault(call.rank, {}).setdefault(call.posted.device, call)
    return {} if used and host.must_share_gpus() else used


# -- what the profile's backend refuses ----------------------------------------------------


def _refused(journal: Journal, profile: str) -> Iterator[Hazard]:
    """One hazard for each rule, operation and line, with all ranks that did it."""
    alike: dict[Hashable, list[RefusedCall]] = {}
    for event in journal.rare(Noted):
        if event.about == KIND:
            refusal: RefusedCall = event.what
            place = (refusal.law.name, refusal.op.name, event.mark)
            alike.setdefault(place, []).append(refusal)
    backend = {"nccl": "NCCL", "gloo": "Gloo"}.get(profile, profile)
    for key, refusals in alike.items():
        first = refusals[0]
        op, law = first.op, first.law
        ranks = tuple(sorted({each.op.rank for each in refusals}))
        verb = "calls" if len(ranks) == 1 else "call"
        headline = f"{name_ranks(ranks)} {verb} {op.name}, which {backend} {first.effect}"
        if len(headline) + len(law.says) <= _LONGEST:
            headline = f"{headline}: {law.says}"
        call = Issued(op.rank, 0, 0, op.name, posted=op)
        yield Hazard(law, key, ranks, headline, ((ranks, call, ""),))
