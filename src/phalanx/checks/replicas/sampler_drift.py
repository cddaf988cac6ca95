"""Samplers of replicas that do not divide the data among the ranks.

| a `DistributedSampler` around the steps of a model          | verdict                        |
|-------------------------------------------------------------|--------------------------------|
| for as many replicas as the model has, and on some ranks    | drift of the data              |
| another seed, length or order, or the same part on several  |                                |
| for datasets of other lengths, which are shuffled           | drift of the data              |
| another epoch from some moment on                           | drift of the data              |
| another epoch at some moments, and the same later           | legal: a rank was ahead        |
| another seed or epoch, and nothing is shuffled              | legal                          |
| as many samples on all ranks, of datasets of other lengths, | not known: only the end may    |
| and nothing is shuffled                                     | differ                         |
| a dataset that is not as long as it was for the sampler     | nothing is known               |
| for another number of replicas than the model has           | nothing is known               |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from phalanx.checks.replicas.replica_blame import with_making
from phalanx.checks.replicas.replica_samples import (
    KIND,
    Key,
    Replica,
    Sample,
    SamplerFacts,
    by_value,
    odd_ranks,
)
from phalanx.journal.events import site_of
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Group, Op, Site
from phalanx.source_text import only_call_on

_STATIC = ("seed", "shuffle", "drop_last", "length", "total_size")
_MEANING = {
    "seed": "ranks shuffle the data differently, so they share some of it and miss some",
    "epoch": "ranks shuffle the data differently, so they share some of it and miss some",
    "shuffle": "ranks order the data differently, so they share some of it and miss some",
    "drop_last": "ranks have parts of other lengths",
    "total_size": "ranks have parts of other lengths",
    "length": "ranks shuffle data of other lengths, so they share some of it and miss some",
}
_SHUFFLED = frozenset({"seed", "epoch", "length"})
"""What counts for shuffling only."""
_HINTS = {
    "total_size": "give all ranks the same data",
    "epoch": "call set_epoch on all ranks, with the same number",
    "length": "give all ranks the same samples: drop some on all ranks together, e.g. by an "
    "all_gather_object of their numbers before the sampler is made",
}


def find_other_samplers(replicas: Mapping[int, Replica]) -> Finding | None:
    """Samplers of the loop around the steps that do not divide the data among the ranks."""
    one = next(iter(replicas.values()))
    seen: dict[str, list[dict[int, tuple[SamplerFacts, Sample]]]] = {}
    for at in _whole_moments(replicas, len(one.ranks)):
        by_name: dict[str, dict[int, tuple[SamplerFacts, Sample]]] = {}
        for rank, sample in at.items():
            for facts in sample.samplers:
                by_name.setdefault(facts.name, {})[rank] = facts, sample
        for name, by_rank in by_name.items():
            whole = all(each.num_replicas == len(one.ranks) for each, _ in by_rank.values())
            if len(by_rank) == len(one.ranks) and whole:
                seen.setdefault(name, []).append(by_rank)
    for name, moments in seen.items():
        found = _find_other_sampler(one, name, moments)
        if found is not None:
            facts, _ = next(iter(moments[0].values()))
            return with_making(found, facts.made_by)
    return None


def _whole_moments(
    replicas: Mapping[int, Replica], size: int
) -> Iterator[Mapping[int, Sample]]:
    """Those before a step that all ranks have, in order."""
    moments: dict[Key, dict[int, Sample]] = {}
    for rank, replica in replicas.items():
        for sample in replica.samples:
            if not sample.after:
                moments.setdefault(sample.key, {})[rank] = sample
    return (moments[key] for key in sorted(moments) if len(moments[key]) == size)


def _find_other_sampler(
    one: Replica, name: str, moments: Sequence[Mapping[int, tuple[SamplerFacts, Sample]]]
) -> Finding | None:
    first = moments[0]
    parts = by_value({rank: facts.rank for rank, (facts, _) in first.items()})
    if len(parts[0][1]) > 1:
        part, ranks = parts[0]
        return _sampler_finding(
            one,
            first,
            ranks,
            f"{name_ranks(ranks)} read the same part of the data: {name} has rank={part} on "
            f"all of them",
            "give each rank its own number: rank=dist.get_rank(), or leave it out",
        )
    for attribute in _STATIC:
        values = {rank: getattr(facts, attribute) for rank, (facts, _) in first.items()}
        known = None not in values.values()
        if known and len(set(values.values())) > 1 and _matters(attribute, first):
            return _other_value(one, name, first, attribute, values)
    apart = [number for number, at in enumerate(moments) if len(_epochs(at)) > 1]
    last = len(moments) - 1
    if len(apart) > 1 and apart == list(range(apart[0], last + 1)):
        at = moments[apart[0]]
        if _matters("epoch", at):
            values = {rank: facts.epoch for rank, (facts, _) in at.items()}
            return _other_value(one, name, at, "epoch", values, _unchanged(moments))
    return None


def _unchanged(
    moments: Sequence[Mapping[int, tuple[SamplerFacts, Sample]]],
) -> tuple[int, ...]:
    """Ranks whose sampler has one epoch all the time, while those of others have several."""
    epochs = {rank: {at[rank][0].epoch for at in moments} for rank in moments[0]}
    still = tuple(sorted(rank for rank, own in epochs.items() if len(own) == 1))
    return still if len(still) < len(epochs) else ()


def _epochs(at: Mapping[int, tuple[SamplerFacts, Sample]]) -> set[int]:
    return {facts.epoch for facts, _ in at.values()}


def _matters(attribute: str, at: Mapping[int, tuple[SamplerFacts, Sample]]) -> bool:
    return attribute not in _SHUFFLED or all(facts.shuffle for facts, _ in at.values())


def _other_value(
    one: Replica,
    name: str,
    at: Mapping[int, tuple[SamplerFacts, Sample]],
    attribute: str,
    values: Mapping[int, Any],
    unchanged: tuple[int, ...] = (),
) -> Finding:
    classes = by_value(values)
    more: tuple[tuple[str, str], ...] = ()
    if attribute == "length":
        (most, first), *others = classes
        parts = (f"{value} on {name_ranks(who)}" for value, who in others)
        headline = f"the dataset of {name} has {most} samples on {name_ranks(first)}"
        headline = f"{headline} and {', '.join(parts)}"
        more = (("data", _MEANING[attribute]),)
    else:
        parts = (f"{attribute}={value} on {name_ranks(who)}" for value, who in classes)
        headline = f"{name} has {', '.join(parts)}: {_MEANING[attribute]}"
    hint = _HINTS.get(attribute, f"give all ranks the same {attribute}")
    odd = unchanged or odd_ranks([who for _, who in classes])
    if unchanged:
        hint += f"; on {name_ranks(unchanged)} the epoch never changed"
    found = _sampler_finding(one, at, odd, headline, hint)
    found = replace(found, facts=(*more, *found.facts))
    return _with_setting(found, name, unchanged) if unchanged else found


def _with_setting(finding: Finding, name: str, unchanged: tuple[int, ...]) -> Finding:
    """The finding, with the line that sets the epoch on the other ranks, if the source shows
    it: nothing else changes that of a sampler."""
    one = finding.blocks[0].op
    line = one.site and only_call_on(one.site, name, "set_epoch")
    if not line:
        return finding
    others = tuple(rank for rank in one.group.ranks if rank not in unchanged)
    op = Op(others[0], f"{name}.set_epoch", one.group, site=line)
    return replace(finding, blocks=(CallBlock(others, op), *finding.blocks))


def _sampler_finding(
    one: Replica,
    at: Mapping[int, tuple[SamplerFacts, Sample]],
    odd: Sequence[int],
    headline: str,
    hint: str,
) -> Finding:
    by_site: dict[Site | None, list[int]] = {}
    for rank, (_, sample) in sorted(at.items()):
        by_site.setdefault(site_of(sample.mark), []).append(rank)
    group = Group("world", one.ranks)
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=tuple(odd),
        headline=headline,
        blocks=tuple(
            CallBlock(tuple(ranks), Op(ranks[0], f"{one.optimizer}.step", group, site=site))
            for site, ranks in by_site.items()
        ),
        facts=(
            ("rule", "the samplers of all replicas divide one order of the data among them"),
        ),
        hint=hint,
    )
