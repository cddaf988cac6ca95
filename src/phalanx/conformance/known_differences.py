"""The differences between two tables, and which of them are known.

`KNOWN` should be nearly empty. Gloo decides what is right: a case that passes there and not on
the threads engine is a defect of ours, unless it is listed here with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from phalanx.backend.profiles import profile_of
from phalanx.conformance.case_model import Result, Table


@dataclass(frozen=True)
class KnownDifference:
    """Cases (a glob over ids) on which threads and the real backend differ, and why."""

    ids: str
    reason: str


@dataclass(frozen=True)
class CaseDifference:
    """A case with two outcomes. `reason` is empty if there is no explanation."""

    id: str
    one: str
    other: str
    reason: str = ""


_NO_FUTURE = (
    "Gloo's work of reduce_scatter has neither a future nor a result (torch 2.13); every other "
    "work has, and so has ours"
)
_RECORDED = (
    "Gloo lets autograd record the copy of a leaf into an output that is a view, and then "
    "refuses it, on some ranks or on all; the threads engine records nothing and does it"
)
_ABORTS = (
    "Gloo ends the whole process (SIGABRT) when a message is longer than the room for it; the "
    "threads engine raises the mismatch on every rank"
)
_SILENT = "Gloo raises nothing and leaves data as it happens to be; the threads engine raises"

KNOWN: tuple[KnownDifference, ...] = (
    KnownDifference("Work/get_future/reduce_scatter@*", _NO_FUTURE),
    KnownDifference("Work/then/reduce_scatter@*", _NO_FUTURE),
    KnownDifference("Work/result/reduce_scatter@*", _NO_FUTURE),
    KnownDifference(
        "Work/is_completed/reduce_scatter@*",
        "Gloo's work of reduce_scatter completes only when somebody waits for it; ours "
        "completes by itself, as every other work does",
    ),
    KnownDifference("all_to_all/float32/*/requires-grad@*", _RECORDED),
    KnownDifference("reduce_scatter_tensor/float32/*/requires-grad@*", _RECORDED),
    KnownDifference("all_reduce/mistake/sizes-differ-by-rank@*", _ABORTS),
    KnownDifference("all_reduce/mistake/dtypes-differ-by-rank@*", _ABORTS),
    KnownDifference("all_gather/mistake/sizes-differ-by-rank@*", _ABORTS),
    KnownDifference("recv/mistake/message-too-long@*", _ABORTS),
    KnownDifference("broadcast/mistake/sizes-differ-by-rank@*", _SILENT),
    KnownDifference(
        "all_to_all_single/mistake/does-not-divide@*",
        "Gloo divides bytes, not elements: 3 floats among 2 ranks are 6 bytes each, and no "
        "error; the threads engine raises",
    ),
)


def find_differences(one: Table, other: Table) -> list[CaseDifference]:
    """Cases of `one` that `other` has with another outcome, or has not at all."""
    others = {result.id: result for result in other.results}
    found = []
    for result in one.results:
        against = others.get(result.id)
        if against is None:
            found.append(CaseDifference(result.id, result.outcome, "missing"))
        elif against.outcome != result.outcome:
            reason = _reason(result, against, one.backend)
            found.append(CaseDifference(result.id, result.outcome, against.outcome, reason))
    return found


def is_known_trouble(result: Result, backend: str) -> bool:
    """Whether this is what the backend is known for: by a rule, or as a known difference."""
    if any(fnmatchcase(result.id, known.ids) for known in KNOWN):
        return True
    profile = profile_of(backend)
    rules = {rule.name: rule for rule in profile.rules} if profile is not None else {}
    rule = rules.get(result.rule)
    return rule is not None and rule.effect != "refuses"


def _reason(one: Result, other: Result, backend: str) -> str:
    for known in KNOWN:
        if fnmatchcase(one.id, known.ids):
            return known.reason
    if {one.outcome, other.outcome} in ({"refuse", "WRONG"}, {"refuse", "fail"}):
        profile = profile_of(backend)
        for rule in profile.rules if profile is not None else ():
            if rule.name in (one.rule, other.rule) and rule.effect != "refuses":
                return f"{backend} {rule.effect} ({rule.name}); the threads engine refuses"
    return ""
