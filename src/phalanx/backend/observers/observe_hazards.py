"""Collect what NCCL may hang on, mix up or refuse, for `checks/nccl_*.py` to judge.

At the end of a run the journals of the ranks become a trace: under `profile="nccl"` of all
groups, or, if the program asks for NCCL itself, of those groups; without a profile of what went
over NCCL. What NCCL would refuse by dtype, reduce op or layout is noted at the call, by
`Admission`, since the journal has no tensors; the device is left out of that, because the point
of a profile is to run where there are no GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from phalanx.backend.collectives.reduction import NAMES
from phalanx.backend.profiles import CORRUPTS, CRASHES, ProfileRule, TensorUse, profile_of
from phalanx.backend.profiles.profile_rules import CUDA
from phalanx.backend.session import RankContext, Session, context_here
from phalanx.callsite import mark, resolve
from phalanx.checks.nccl_hazards import (
    Hazard,
    Issued,
    Law,
    Trace,
    as_findings,
    find_first_batches,
    find_refused_calls,
    find_shared_devices,
)
from phalanx.checks.nccl_messages import find_message_hazards, traffic_of
from phalanx.checks.nccl_order import find_orders
from phalanx.matching.hints import name_ranks
from phalanx.matching.slots import Assembly, Step
from phalanx.model import Finding, Group, Op, Severity, TensorSpec, Verdict

NCCL = "nccl"
_EFFECTS = {CORRUPTS: "would corrupt", CRASHES: "would die of"}
_LONGEST = 80
"""Of a headline."""


def find_backend_hazards(session: Session) -> Iterable[Verdict]:
    if session.profile is None and not session.has_nccl:
        return ()
    severity: Severity = "error" if session.profile else "warning"
    found = [*_findings_of_refusals(session, severity)]
    latest = [context.last_call for context in session.ranks]
    before = session.notes.get("backend-hazard")
    session.notes["backend-hazard"] = latest
    if session.profile in (None, NCCL) and latest != before:
        trace = _trace_of(session)
        found += as_findings(_hazards_in(trace, session), _describe, severity)
    fresh = [each for each in found if each not in session.told]
    session.told.update(fresh)
    return fresh


def _hazards_in(trace: Trace, session: Session) -> Iterator[Hazard]:
    traffic = traffic_of(trace)
    yield from find_orders(trace, traffic)
    yield from find_message_hazards(trace, traffic)
    yield from find_first_batches(trace)
    yield from find_refused_calls(trace)
    yield from find_shared_devices(_devices_in(trace, session), _machine_of(session))


# -- from journals to a trace --------------------------------------------------------------


def _trace_of(session: Session) -> Trace:
    choose = _chooser(session)
    groups: dict[Assembly, int] = {}
    ranks = []
    for context in session.ranks:
        steps = [step for step in context.journal if choose(step) and not step.withdrawn]
        ranks.append(tuple(_issued(context.rank, step, groups) for step in steps))
    return Trace(
        groups=tuple(Group(met.name, met.ranks) for met in groups),
        ranks=tuple(ranks),
        whole=all(len(c.journal) < session.journal_length for c in session.ranks),
        eager=frozenset(index for met, index in groups.items() if met.eager),
    )


def _chooser(session: Session) -> Callable[[Step], bool]:
    """Which calls are NCCL's, or stand for such."""
    asked = {step.assembly for c in session.ranks for step in c.journal}
    by_name = {met for met in asked if NCCL in met.backend}
    if session.profile == NCCL:
        chosen = by_name if session.has_nccl else asked
        return lambda step: step.assembly in chosen
    on_gpu = {
        step.assembly for c in session.ranks for step in c.journal if step.device is not None
    }
    purely = {met for met in by_name if "gloo" not in met.backend}
    mixed = (by_name - purely) & on_gpu
    return lambda step: (
        step.assembly in purely
        or (step.assembly in mixed and (step.device is not None or step.name == "barrier"))
    )


def _issued(rank: int, step: Step, groups: dict[Assembly, int]) -> Issued:
    met = step.assembly
    return Issued(
        rank,
        step.thread,
        groups.setdefault(met, len(groups)),
        step.name,
        step.number,
        None if step.peer is None else met.ranks[step.peer],
        step.tag,
        step.batch,
        step.mark,
        step,
    )


def _describe(call: Issued) -> Op:
    step: Step = call.step
    met = step.assembly
    return Op(
        rank=call.rank,
        name=step.name,
        group=Group(met.name, met.ranks),
        number=step.number,
        root=None if step.root is None else met.ranks[step.root],
        reduce_op=NAMES[step.op[0]] if step.op is not None else None,
        peer=call.peer,
        tag=step.tag,
        site=resolve(step.mark),
    )


def _devices_in(trace: Trace, session: Session) -> dict[int, dict[int, Issued]]:
    """The GPUs that each rank used; nothing where ranks must share, as there are too few."""
    used: dict[int, dict[int, Issued]] = {}
    for calls in trace.ranks:
        for call in calls:
            if call.step.device is not None:
                used.setdefault(call.rank, {}).setdefault(call.step.device, call)
    devices = session.devices
    if used and devices is not None and devices.is_needed:
        return {}
    if used and 0 < torch.cuda.device_count() < _ranks_per_machine(session):
        return {}
    return used


def _machine_of(session: Session) -> Callable[[int], int]:
    return lambda rank: int(session.ranks[rank].environ.get("GROUP_RANK", 0))


def _ranks_per_machine(session: Session) -> int:
    return int(session.ranks[0].environ.get("LOCAL_WORLD_SIZE", session.size))


# -- what the profile's backend refuses ----------------------------------------------------


class _Refused:
    """A rule, the first call that breaks it at one line, and the ranks that did."""

    def __init__(self, rule: ProfileRule, use: TensorUse, op: Op) -> None:
        self.rule = rule
        self.use = use
        self.op = op
        self.ranks = {op.rank}


def second_opinion(session: Session) -> Callable[[TensorUse, Tensor, str | None], bool] | None:
    """What the profile's backend says about a call that the group's own takes. Groups are
    handed on to other worlds with the same profile."""
    profile = profile_of(session.profile)
    if profile is None or "backend-hazard" not in session.kinds:
        return None

    def ask(use: TensorUse, tensor: Tensor, config: str | None) -> bool:
        context = context_here()
        if context is None:
            return True
        if profile.name == NCCL:
            if context.session.has_nccl and NCCL not in (config or ""):
                return True  # the program knows NCCL, and this group is to be another's
            use = replace(use, device=CUDA)
        rule = profile.refusal(use)
        if rule is not None and not use.any_source:  # the trace has those
            _note(context, rule, use, tensor)
        return rule is None

    return ask


def _note(context: RankContext, rule: ProfileRule, use: TensorUse, tensor: Tensor) -> None:
    place = mark(2)
    key: Any = (rule.name, use.op, place)
    known = context.session.refused.get(key)
    if known is not None:
        known.ranks.add(context.rank)
        return
    dtype = str(tensor.dtype).removeprefix("torch.")
    op = Op(
        rank=context.rank,
        name=use.op,
        group=Group("world", ()),
        reduce_op=use.reduce_op,
        inputs=(TensorSpec(dtype, tuple(tensor.shape), str(tensor.device)),),
        site=resolve(place),
    )
    context.session.refused[key] = _Refused(rule, use, op)


def _findings_of_refusals(session: Session, severity: Severity) -> Iterator[Finding]:
    refused, session.refused = session.refused, {}
    for each in refused.values():
        yield from as_findings(
            [_hazard(each, session.profile or "")], lambda c: c.step, severity
        )


def _hazard(each: _Refused, profile: str) -> Hazard:
    backend = {"nccl": "NCCL", "gloo": "Gloo"}.get(profile, profile)
    ranks = tuple(sorted(each.ranks))
    verb = "calls" if len(ranks) == 1 else "call"
    effect = _EFFECTS.get(each.rule.effect, "refuses")
    says, _, hint = each.rule.explain(each.use).partition("; ")
    headline = f"{name_ranks(ranks)} {verb} {each.op.name}, which {backend} {effect}"
    if len(headline) + len(says) <= _LONGEST:
        headline = f"{headline}: {says}"
    law = Law(each.rule.name, says, each.rule.source, hint)
    call = Issued(each.op.rank, 0, 0, each.op.name, step=each.op)
    return Hazard(law, id(each), ranks, headline, ((ranks, call, ""),))
