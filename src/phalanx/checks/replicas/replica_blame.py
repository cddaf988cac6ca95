"""Which ranks made replicas differ, where no majority of them says so. Pure.

Used by `replica_drift.py` and `sampler_drift.py`, for what ranks noted besides their values.

| seen                                                        | at fault                       |
|-------------------------------------------------------------|--------------------------------|
| the last forward before a step was in `no_sync()` on some   | these ranks                    |
| ranks, and the gradients differ                             |                                |
| parameters of some ranks are what DDP made equal, or the    | the others: they wrote to them |
| last step did; those of the others are not                  |                                |
| an optimizer has the order of the model on some ranks       | the others                     |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from phalanx.checks.replicas.replica_samples import Replica, Sample
from phalanx.model import CallBlock, Finding, Op
from phalanx.source_text import only_call_of


def unsynced_ranks(here: Mapping[int, Sample]) -> tuple[int, ...]:
    """Those whose last forward before the step averages nothing in its backward."""
    return tuple(sorted(rank for rank, sample in here.items() if sample.synced is False))


def writing_ranks(
    replicas: Mapping[int, Replica],
    at: Mapping[int, Sample],
    alike: Mapping[int, Sample],
    differing: Sequence[int],
) -> tuple[int, ...]:
    """Ranks whose parameters changed outside of steps, from values that all had in common,
    while those of others did not. `at` is the moment at which they differ, `alike` the last one
    at which they did not."""
    if any(sample.after for sample in at.values()):
        return ()
    common: dict[int, tuple[Any, ...]] = {}
    for rank, sample in at.items():
        one = alike.get(rank)
        if one is not None and one.after and sample.step == one.step + 1:
            common[rank] = one.parameters
        elif one is None and sample.step == 1:
            common[rank] = replicas[rank].wrapped
    if len(common) < len(at) or len(set(common.values())) != 1 or not common[min(common)]:
        return ()
    changed = [
        rank
        for rank, sample in at.items()
        if any(sample.parameters[number] != common[rank][number] for number in differing)
    ]
    return tuple(sorted(changed)) if len(changed) < len(at) else ()


def reordering_ranks(replicas: Mapping[int, Replica]) -> tuple[int, ...]:
    """Ranks whose optimizer has another order than the model, while that of others has it."""
    odd = tuple(rank for rank, each in sorted(replicas.items()) if each.order != each.names)
    return odd if len(odd) < len(replicas) else ()


def with_making(finding: Finding, name: str) -> Finding:
    """The finding about a sampler or an optimizer, with the line that makes it by its name, if
    the source shows one."""
    one = finding.blocks[0].op
    line = one.site and only_call_of(one.site, name)
    if not line:
        return finding
    op = Op(one.group.ranks[0], name, one.group, site=line)
    return replace(finding, blocks=(CallBlock(one.group.ranks, op), *finding.blocks))
