"""What a profile's backend says about calls that the group's own backend takes.

Used by the process group in worlds with a profile. It only takes notes, one for each rank and
line: `checks/backend_hazard.py` makes findings of them when the run has ended. The device is
left out, because the point of a profile is to run where there are no GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from phalanx.backend.profiles import CORRUPTS, CRASHES, ProfileRule, TensorUse, profile_of
from phalanx.backend.profiles.profile_rules import CUDA
from phalanx.backend.session import RankContext, Session, context_here
from phalanx.callsite import mark, resolve
from phalanx.checks.backend_hazard import KIND, NCCL, RefusedCall
from phalanx.checks.nccl_rules.nccl_hazards import Law
from phalanx.journal.events import Noted
from phalanx.journal.writer import note_once
from phalanx.model import Group, Op, TensorSpec

_EFFECTS = {CORRUPTS: "would corrupt", CRASHES: "would die of"}


def second_opinion(
    session: Session,
) -> Callable[[TensorUse, Tensor, str | None], bool] | None:
    """What to ask about each use of a tensor; None where there is no profile. Groups are handed
    on to other worlds with the same profile, so the rank is looked up at each call."""
    profile = profile_of(session.profile)
    if profile is None or KIND not in session.kinds:
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
        if rule is not None and not use.any_source:  # the journal has those
            _note(context, rule, use, tensor)
        return rule is None

    return ask


def _note(context: RankContext, rule: ProfileRule, use: TensorUse, tensor: Tensor) -> None:
    place = mark(2)
    key = (KIND, rule.name, use.op, place)
    if key in context.noted:
        return
    says, _, hint = rule.explain(use).partition("; ")
    dtype = str(tensor.dtype).removeprefix("torch.")
    op = Op(
        rank=context.rank,
        name=use.op,
        group=Group("world", ()),
        reduce_op=use.reduce_op,
        inputs=(TensorSpec(dtype, tuple(tensor.shape), str(tensor.device)),),
        site=resolve(place),
    )
    law = Law(rule.name, says, rule.source, hint)
    refusal = RefusedCall(law, _EFFECTS.get(rule.effect, "refuses"), op)
    event = Noted(context.now(), context.rank, 0, place, KIND, refusal)
    note_once(context, key, event)
