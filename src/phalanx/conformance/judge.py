"""The outcome of a case, from the reports of all ranks. Pure decisions.

What a backend may refuse comes from its profile. A backend without a profile may refuse unusual
dtypes, layouts and reduce operations, and operations that not every backend has, as long as
every rank gets a clean error. It must do the basic cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from phalanx.backend.profiles import REFUSES, TensorUse, profile_of
from phalanx.backend.profiles.profile_rules import INPUT, OUTPUT
from phalanx.conformance.case_context import GROUPS
from phalanx.conformance.case_model import Case, Outcome, Report, Result
from phalanx.conformance.case_tensors import SHAPES, dtype_of, fresh_room, place, result_layout
from phalanx.conformance.operations import OPERATIONS


@dataclass(frozen=True)
class Refusal:
    """Why a backend does not do a case: the rule's name, its text, and what really happens
    there ("refuses", or worse)."""

    name: str
    says: str
    effect: str = REFUSES


GLOO_ONLY = Refusal("gloo-only", "torch has monitored_barrier for the backend named gloo only")


def applies(case: Case, backend: str) -> bool:
    """Whether the case says anything about this backend."""
    profile = profile_of(backend)
    if case.needs == "tags":
        return profile is None or not profile.ignores_tags
    return case.needs != "gloo" or backend == "gloo"


def known_refusal(case: Case, backend: str, device: str) -> Refusal | None:
    """The rule by which this backend refuses this case, if it does."""
    if case.needs == "monitored_barrier" and backend != "gloo":
        return GLOO_ONLY
    profile = profile_of(backend)
    if profile is None:
        return None
    uses = [] if case.program != "collective" else uses_of(case, device)
    if case.needs == "sparse":
        dtype = dtype_of(case.given.get("dtype", "float32"))
        uses = [TensorUse("all_reduce", dtype, "SUM", device, "sparse_coo", sparse_dim=1)]
    elif case.needs == "any source":
        uses = [TensorUse("recv", torch.float32, device=device, any_source=True)]
    for use in uses:
        rule = profile.refusal(use)
        if rule is not None:
            return Refusal(rule.name, rule.explain(use), rule.effect)
    return None


def uses_of(case: Case, device: str) -> list[TensorUse]:
    """What the case asks of a backend, in the words of the profiles: one use per tensor."""
    given = case.given
    row = OPERATIONS[given["operation"]]
    size = max(len(members) for members in GROUPS[given["group"]](case.ranks))
    shape, dtype = SHAPES[given.get("shape", "matrix")], dtype_of(given["dtype"])
    layout = given.get("layout", "contiguous")
    brought = [row.brings(shape, rank, size) for rank in range(size)]
    inputs = [place(torch.zeros(s).to(dtype), layout, "cpu").tensor for s in brought[0]]
    wanted = row.gets(shape, 0, size) if row.gets is not None else []
    outputs = [fresh_room(s, dtype, result_layout(layout, s), "cpu").tensor for s in wanted]
    more = {
        "reduce_op": given.get("op", "SUM") if row.reduces else None,
        "device": device,
        "uneven": row.uneven and len({*wanted, *brought[0]}) > 1,
        "stacking": row.gathers and wanted[0] == (size, *brought[0][0]),
        "alike": len({tensor.stride() for tensor in (*inputs, *outputs)}) == 1,
    }
    names = ("send", "recv") if row.pairs else (row.in_profile,)
    return [
        TensorUse.of(name, tensor, part=part, **more)
        for name in names
        for part, tensors in ((INPUT, inputs), (OUTPUT, outputs))
        for tensor in tensors
    ]


def is_basic(case: Case) -> bool:
    """Whether every backend must do this: float32 that lies contiguous in memory, SUM, and all
    that has no dtype or layout at all."""
    given = case.given
    return (
        not case.needs
        and given.get("dtype", "float32") == "float32"
        and given.get("layout", "contiguous") in ("contiguous", "view")
        and str(given.get("op", "SUM")).upper() == "SUM"
    )


def taking_part(case: Case) -> set[int]:
    """The ranks on which the case does something."""
    shape = case.given.get("group", "full")
    return {rank for members in GROUPS[shape](case.ranks) for rank in members}


def judge(
    case: Case, reports: Sequence[Report], rule: Refusal | None, *, known: bool
) -> Result:
    """`known`: whether the backend has a profile, so that a refusal needs a rule."""
    return _result(case, rule, *_outcome(case, reports, rule, known))


def judge_lost(case: Case, reason: str, rule: Refusal | None) -> Result:
    """A case that brought no reports: the ranks hung, or one of them died."""
    return _result(case, rule, "fail", reason)


def _result(case: Case, rule: Refusal | None, outcome: Outcome, reason: str) -> Result:
    return Result(
        id=case.id,
        family=case.family,
        operation=case.operation,
        ranks=case.ranks,
        outcome=outcome,
        reason=reason,
        rule=rule.name if rule is not None else "",
        dtype=case.column("dtype"),
        mode=case.column("mode"),
        group=case.column("group"),
    )


def _outcome(
    case: Case, reports: Sequence[Report], rule: Refusal | None, known: bool
) -> tuple[Outcome, str]:
    for status, outcome in (("wrong", "WRONG"), ("unmet", "fail")):
        found = [(rank, r.text) for rank, r in enumerate(reports) if r.status == status]
        if found:
            return ("WRONG" if outcome == "WRONG" else "fail"), _told(found)
    errors = [(rank, r.text) for rank, r in enumerate(reports) if r.status == "error"]
    if errors and rule is not None and case.needs:
        return "refuse", rule.says  # on the rank that asks for it; others wait for that rank
    if case.raises:
        return _judge_mistake(case, reports)
    if not errors:
        return "pass", ""
    if len(errors) < len(taking_part(case)):
        return "fail", f"only on some ranks: {_told(errors)}"
    if rule is not None:
        return "refuse", rule.says
    if not known and not is_basic(case):
        return "refuse", _told(errors)
    return "fail", _told(errors)


def _judge_mistake(case: Case, reports: Sequence[Report]) -> tuple[Outcome, str]:
    right = [r.status == "error" and bool({*r.classes} & {*case.raises}) for r in reports]
    wanted = " or ".join(case.raises)
    if all(right) or (any(right) and not case.everywhere):
        return "pass", ""
    errors = [(rank, r.text) for rank, r in enumerate(reports) if r.status == "error"]
    if not errors:
        return "fail", f"no error where {wanted} must be raised"
    missing = [rank for rank, each in enumerate(right) if not each]
    return "fail", f"ranks {missing} without {wanted}: {_told(errors)}"


def _told(found: Sequence[tuple[int, str]]) -> str:
    """The first rank's text, and how many say the same."""
    rank, text = found[0]
    others = [str(other) for other, each in found if each == text]
    return f"rank {rank}: {text}" if len(others) == 1 else f"ranks {','.join(others)}: {text}"
