"""Replicas of one model that are no longer equal: parameters that differ between ranks. Pure.

DDP makes replicas equal when it wraps a model, and averages gradients afterwards; nothing else
keeps them equal. Each rank notes checksums of its parameters and gradients around a sample of
the steps of its optimizers (`backend/evidence/replica_watch.py`). A *moment* is just before or
after such a step. The moments of two ranks are one moment if both ranks had called as many
collectives on the group of the model; the number of steps says nothing, because in `join()`
ranks may legally make fewer.

| seen at one moment                                          | verdict                        |
|-------------------------------------------------------------|--------------------------------|
| other parameters, and never equal again                     | drift                          |
| other parameters, and equal again before a later step       | legal: the program averages    |
| other parameters, and later calls of the program on tensors | legal: it exchanges parameters |
| of their shape                                              | by itself                      |
| other parameters on another machine, device or number of    | nothing: bits may differ there |
| threads                                                     |                                |
| other gradients, other settings, fewer steps                | not by itself: they explain    |
| the same parameters of an optimizer in another order        | drift of the optimizer's state |

Equal means bit by bit: all ranks get the same averaged gradient, and the same instructions on
the same machine make the same parameters of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from phalanx.checks.replicas.replica_blame import (
    reordering_ranks,
    unsynced_ranks,
    with_making,
    writing_ranks,
)
from phalanx.checks.replicas.replica_samples import (
    KIND,
    Key,
    Replica,
    Sample,
    by_value,
    odd_ranks,
)
from phalanx.checks.replicas.sampler_drift import find_other_samplers
from phalanx.journal.events import site_of
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Group, Op, Site

MOST_NAMES = 4


class Drift(NamedTuple):
    """Where replicas differ first. `classes` are the ranks whose parameters are equal, the
    largest class first; `first` is the first parameter in which classes differ."""

    at: Mapping[int, Sample]
    before: Mapping[int, Sample]
    """The same ranks before the step, where `at` is after it."""
    alike: Mapping[int, Sample]
    """The last moment at which these ranks were equal."""
    left_out: tuple[tuple[int, ...], Mapping[int, Sample]] | None
    """Ranks that did not make a step since then, and the others just before it."""
    first: int
    differing: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]


def find_replica_drift(journal: Journal, host: object) -> Iterator[Finding]:
    """One finding for each model."""
    told: set[Any] = set()
    for by_rank in _replicas(journal):
        one = next(iter(by_rank.values()))
        model = (one.ranks, one.number, one.title)
        found = None if model in told else _find(journal, by_rank)
        if found is not None:
            told.add(model)
            yield found


def _replicas(journal: Journal) -> Iterable[dict[int, Replica]]:
    alike: dict[Any, dict[int, Replica]] = {}
    for event in journal.noted(KIND):
        replica = Replica(*event.what)
        key = replica.ranks, replica.number, replica.title, replica.machine, replica.names
        alike.setdefault((*key, replica.shapes), {})[event.rank] = replica
    return [by_rank for by_rank in alike.values() if len(by_rank) > 1]


def _find(journal: Journal, replicas: Mapping[int, Replica]) -> Finding | None:
    drift = find_drift(replicas)
    if drift is not None and not _is_exchanged(journal, replicas, drift):
        return _by_order(replicas, drift) or _drift_finding(replicas, drift)
    return find_other_order(replicas) or find_other_samplers(replicas)


def find_drift(replicas: Mapping[int, Replica]) -> Drift | None:
    """The first moment at which they differ, unless they are equal again later on."""
    moments: dict[Key, dict[int, Sample]] = {}
    for rank, replica in replicas.items():
        for sample in replica.samples:
            moments.setdefault(sample.key, {})[rank] = sample
    ordered = sorted(moments)
    for number, key in enumerate(ordered):
        if len({sample.parameters for sample in moments[key].values()}) > 1:
            found = _drift([moments[each] for each in ordered[: number + 1]])
            later = (moments[each] for each in ordered[number + 1 :] if not each[2])
            return None if any(_is_equal_again(found, at) for at in later) else found
    return None


def _drift(moments: Sequence[Mapping[int, Sample]]) -> Drift:
    """`moments` up to the one at which ranks differ."""
    at, earlier = moments[-1], moments[:-1]
    alike: Mapping[int, Sample] = {}
    begin = -1
    for number, each in enumerate(earlier):
        if at.keys() <= each.keys():
            alike, begin = each, number
    left_out = _left_out(at, alike, earlier[begin + 1 :])
    columns = list(zip(*(sample.parameters for sample in at.values()), strict=True))
    differing = [number for number, column in enumerate(columns) if len(set(column)) > 1]
    classes: dict[tuple[Any, ...], list[int]] = {}
    for rank, sample in sorted(at.items()):
        classes.setdefault(sample.parameters, []).append(rank)
    ordered = sorted((tuple(ranks) for ranks in classes.values()), key=lambda r: (-len(r), r))
    index = max(differing, key=lambda number: (len(set(columns[number])), -number))
    before = earlier[-1] if _is_after(at) and earlier and not _is_after(earlier[-1]) else {}
    return Drift(at, before, alike, left_out, index, tuple(differing), tuple(ordered))


def _left_out(
    at: Mapping[int, Sample],
    alike: Mapping[int, Sample],
    between: Iterable[Mapping[int, Sample]],
) -> tuple[tuple[int, ...], Mapping[int, Sample]] | None:
    """Ranks that lack a moment of the others may have had no reason to look; but those that
    made fewer steps too have left it out."""
    if not alike:
        return None
    made = _steps_between(alike, at)
    for moment in between:
        missing = tuple(sorted(at.keys() - moment.keys()))
        there = [made[rank] for rank in at if rank in moment]
        if missing and there and max(made[rank] for rank in missing) < min(there):
            return missing, {rank: moment[rank] for rank in at if rank in moment}
    return None


def _steps_between(one: Mapping[int, Sample], other: Mapping[int, Sample]) -> dict[int, int]:
    """How many steps each rank began between two moments."""
    return {rank: sample.step - one[rank].step for rank, sample in other.items()}


def _is_after(moment: Mapping[int, Sample]) -> bool:
    return next(iter(moment.values())).after


def _is_equal_again(drift: Drift, at: Mapping[int, Sample]) -> bool:
    """Whether ranks that differed have the same values at a later moment."""
    there = [rank for ranks in drift.classes for rank in ranks if rank in at]
    if sum(any(rank in at for rank in ranks) for ranks in drift.classes) < 2:
        return False
    return all(
        len({at[rank].parameters[number] for rank in there}) == 1 for number in drift.differing
    )


def _is_exchanged(journal: Journal, replicas: Mapping[int, Replica], drift: Drift) -> bool:
    """Whether ranks go on to pass tensors of a parameter's shape to calls of their own, as
    algorithms do that let replicas drift on purpose. Calls of DDP and FSDP pass flat tensors,
    DDP to sum or broadcast them. A gather writes to no parameter: it counts if the training
    goes on after it, else the program only looks at the end. Nor do single numbers count, of
    which programs pass many, unless the parameters that differ are such."""
    rank = drift.classes[-1][0]
    replica = replicas[rank]
    shapes = {replica.shapes[number] for number in drift.differing}
    wanted = {shape for shape in shapes if prod(shape) > 1} or shapes
    whole = sum(map(prod, replica.shapes))
    since = drift.at[rank].time
    own = ("all_reduce", "broadcast") if _is_ddp(replica) else None
    gathered = False
    for call in journal.calls(rank):
        if call.time < since:
            continue
        for spec in call.tensors:
            flat = len(spec.shape) < 2
            if flat and (own is None or call.name in own):
                if gathered and prod(spec.shape) > 1:
                    return True
                continue
            if spec.shape in wanted or (flat and prod(spec.shape) == whole):
                if call.name not in _GATHERS:
                    return True
                gathered = True
    return False


_GATHERS = frozenset({"all_gather", "all_gather_into_tensor", "gather"})


# -- the report -------------------------------------------------------------------------------


def _drift_finding(replicas: Mapping[int, Replica], drift: Drift) -> Finding:
    one = next(iter(replicas.values()))
    writing = writing_ranks(replicas, drift.at, drift.alike, drift.differing)
    odd = odd_ranks(drift.classes) or writing
    writing = writing if writing == odd else ()
    shown = _listed([one.names[number] for number in drift.differing])
    agreed = "nothing: no step came before"
    if drift.alike:
        agreed = f"all of them {_when(drift.alike[min(drift.alike)], one.optimizer)}"
    elif writing:
        agreed = "all of them when DDP had wrapped the model"
    elif drift.at[min(drift.at)].step > 1:
        agreed = "not known: no earlier step can be compared"
    why = _why(one, drift, odd, writing)
    odd = odd if why.ranks is None else why.ranks
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=odd if drift.left_out is None else drift.left_out[0],
        headline=why.headline,
        blocks=(*_wrapping(one, drift), *_blocks(one, drift, odd)),
        facts=(
            ("differs", f"{shown} ({len(drift.differing)} of {len(one.names)} parameters)"),
            ("agreed", agreed),
            *why.facts,
        ),
        hint=why.hint,
    )


def _wrapping(one: Replica, drift: Drift) -> Iterator[CallBlock]:
    """Where DDP has made the replicas equal, if they differ before the first step."""
    site = site_of(one.wrapped_at)
    first = drift.at[min(drift.at)]
    if site is not None and first.step == 1 and not first.after:
        op = Op(one.ranks[0], "DistributedDataParallel", Group("world", one.ranks), site=site)
        yield CallBlock(one.ranks, op, ("made the replicas equal, for the last time",))


def _blocks(one: Replica, drift: Drift, odd: Sequence[int]) -> Iterator[CallBlock]:
    at, marked, mark = drift.at, odd, "<- differs"
    if drift.left_out is not None:
        marked, at = drift.left_out
        mark = ""
    alike: dict[tuple[bool, Site | None], list[int]] = {}
    for rank, sample in sorted(at.items()):
        alike.setdefault((rank in marked, site_of(sample.mark)), []).append(rank)
    group = Group("world", one.ranks)
    for (is_odd, site), ranks in sorted(alike.items(), key=lambda each: each[0][0]):
        op = Op(ranks[0], f"{one.optimizer}.step", group, site=site)
        yield CallBlock(tuple(ranks), op, (), mark if is_odd else "")


class _Why(NamedTuple):
    """What the samples say about the reason."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    hint: str
    ranks: tuple[int, ...] | None = None
    """Those at fault, where they are others than those that differ from most."""


def _why(one: Replica, drift: Drift, odd: Sequence[int], writing: Sequence[int]) -> _Why:
    here = drift.before or drift.at
    if drift.left_out is not None:
        return _step_left_out(one, drift, *drift.left_out)
    made = _steps_between(drift.alike, drift.at) if drift.alike else {}
    if len(set(made.values())) > 1:
        return _fewer_steps(one, drift, made)
    gradients = {rank: sample.gradients for rank, sample in here.items() if sample.gradients}
    if len({each[drift.first] for each in gradients.values()}) > 1:
        return _other_gradients(one, drift, odd, gradients)
    settings = _other_settings(here)
    if settings is not None:
        return _Why(
            f"{one.optimizer} steps with {settings}: {_differ(one, drift)}",
            (),
            "the steps are not the same: set it alike on all ranks; a scheduler that looks at "
            "a loss needs one that all ranks agree on",
        )
    headline = f"{_differ(one, drift, '')}: {_who(one, drift, odd)}"
    if drift.before:
        return _Why(
            headline,
            (("gradient", "equal on all ranks, as the parameters were before the step"),),
            "so the optimizers differ: in their state (loaded on some ranks only?), or in what "
            "a step draws by chance",
        )
    if not drift.alike:
        when = "before the model is wrapped" if _is_ddp(one) else "alike on these ranks"
        advice = f"initialise and load weights {when}, or broadcast them afterwards"
        if writing:
            headline = _who_wrote(one, drift, writing, "after DDP had wrapped the model")
        return _Why(headline, _rule(one), advice)
    if writing:
        headline = _who_wrote(
            one, drift, writing, _when(drift.alike[writing[0]], one.optimizer)
        )
    return _Why(
        headline,
        _rule(one),
        "since then something else than this optimizer wrote to the parameters, not alike on "
        "all ranks",
    )


def _differ(one: Replica, drift: Drift, since: str | None = None) -> str:
    if since is None:
        since = f' in "{one.names[drift.first]}" since'
    return f"replicas of {one.title} differ{since}"


def _who_wrote(one: Replica, drift: Drift, writing: Sequence[int], since: str) -> str:
    when = _when(drift.at[min(drift.at)], one.optimizer)
    others = name_ranks(set(drift.at) - set(writing))
    return (
        f'{name_ranks(writing)} changed "{one.names[drift.first]}" {since} and {others} did '
        f"not: {_differ(one, drift, f' {when}')}"
    )


_TOGETHER = (
    "all ranks must make the same steps: decide together whether to skip one, e.g. by an "
    "all_reduce of the reason"
)


def _step_left_out(
    one: Replica, drift: Drift, ranks: tuple[int, ...], others: Mapping[int, Sample]
) -> _Why:
    step = others[min(others)].step
    return _Why(
        f"{name_ranks(ranks)} did not make step {step} of {one.optimizer}, which "
        f"{name_ranks(others)} made: {_differ(one, drift)}",
        (),
        _TOGETHER,
    )


def _fewer_steps(one: Replica, drift: Drift, made: Mapping[int, int]) -> _Why:
    parts = [f"{name_ranks(who)} made {count}" for count, who in by_value(made)]
    return _Why(
        f"{', '.join(parts)} steps of {one.optimizer}: {_differ(one, drift)}",
        (),
        _TOGETHER,
    )


def _other_gradients(
    one: Replica, drift: Drift, odd: Sequence[int], gradients: Mapping[int, tuple[Any, ...]]
) -> _Why:
    here = drift.before or drift.at
    name = one.names[drift.first]
    who = _classes_text(by_value({r: each[drift.first] for r, each in gradients.items()}))
    unsynced = unsynced_ranks(here)
    if unsynced:
        everybody = len(unsynced) == len(here)
        its = "its" if len(unsynced) == 1 else "their"
        return _Why(
            f"{'all ranks' if everybody else name_ranks(unsynced)} made step "
            f"{here[unsynced[0]].step} of {one.optimizer} with {its} own gradient, because "
            f"{its} last backward was in no_sync(): {_differ(one, drift)}",
            (("gradient", f'{who} of the gradient of "{name}" before the step'),),
            "run the last backward() before each step() outside of no_sync(), in the same "
            "micro batch on all ranks",
            None if everybody else unsynced,
        )
    return _Why(
        f"step {here[min(here)].step} of {one.optimizer} used gradients that were not "
        f"averaged: {_differ(one, drift)}",
        (("gradient", f'{who} of the gradient of "{name}" before the step'),),
        "the last backward() before step() must average gradients: it ran in no_sync(), or on "
        "the model inside DDP, or something changed them on some ranks afterwards",
    )


def _who(one: Replica, drift: Drift, odd: Sequence[int]) -> str:
    when = _when(drift.at[drift.classes[0][0]], one.optimizer)
    name = one.names[drift.first]
    if odd:
        has = "has" if len(odd) == 1 else "have"
        others = name_ranks(drift.classes[0])
        return f'{name_ranks(odd)} {has} another "{name}" than {others} {when}'
    values = {rank: sample.parameters[drift.first] for rank, sample in drift.at.items()}
    return f'{_classes_text(by_value(values))} of "{name}" {when}'


def _classes_text(classes: Sequence[tuple[Any, tuple[int, ...]]]) -> str:
    """Who has the same value: `ranks 0, 2 have one value, rank 1 another`."""
    if len(classes) == 2:
        (_, first), (_, second) = classes
        has = "has" if len(first) == 1 else "have"
        return f"{name_ranks(first)} {has} one value, {name_ranks(second)} another"
    ranks = name_ranks(rank for _, each in classes for rank in each)
    return f"{ranks} have {len(classes)} different values"


def _when(sample: Sample, optimizer: str) -> str:
    if not sample.after and sample.step == 1:
        return f"before the first step of {optimizer}"
    return f"{'after' if sample.after else 'before'} step {sample.step} of {optimizer}"


def _is_ddp(replica: Replica) -> bool:
    return replica.title.startswith("DDP(")


def _rule(one: Replica) -> tuple[tuple[str, str], ...]:
    if not _is_ddp(one):
        return (("rule", "what a mesh dimension replicates must be equal along it"),)
    return (
        (
            "rule",
            "DDP makes replicas equal once, when it wraps the model; then it averages "
            "gradients only",
        ),
    )


def _other_settings(here: Mapping[int, Sample]) -> str | None:
    """The first setting of the optimizers that differs between ranks."""
    by_rank = {rank: dict(sample.settings) for rank, sample in here.items()}
    for name in next(iter(by_rank.values())):
        values = {rank: settings.get(name, "unset") for rank, settings in by_rank.items()}
        found = by_value(values)
        if len(found) > 1:
            short = [_short(value) for value, _ in found]
            shown = short if len(set(short)) > 1 else [value for value, _ in found]
            parts = [
                f"{name}={value} on {name_ranks(who)}"
                for value, (_, who) in zip(shown, found, strict=True)
            ]
            return ", ".join(parts)
    return None


def _short(value: str) -> str:
    """A number without the digits that arithmetic leaves at its end."""
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return value


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:MOST_NAMES])
    return shown + (", ..." if len(names) > MOST_NAMES else "")


# -- the order of an optimizer ----------------------------------------------------------------


def _by_order(replicas: Mapping[int, Replica], drift: Drift) -> Finding | None:
    """The order as the reason of a drift: all had the same before the step, and made the same
    step of the same gradients."""
    here = drift.before
    if not here or drift.left_out is not None or _other_settings(here) is not None:
        return None
    if len({sample.gradients for sample in here.values()}) > 1:
        return None
    found = find_other_order({rank: replicas[rank] for rank in here})
    if found is None:
        return None
    one = replicas[min(here)]
    shown = _listed([one.names[number] for number in drift.differing])
    since = f"{shown}, {_when(drift.at[min(drift.at)], one.optimizer)}"
    return replace(found, facts=(("differs", since), *found.facts))


def find_other_order(replicas: Mapping[int, Replica]) -> Finding | None:
    """Ranks that gave an optimizer the same parameters in another order: its state, which goes
    by number, is another one."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, replica in sorted(replicas.items()):
        ranks.setdefault(replica.order, []).append(rank)
    if len(ranks) < 2:
        return None
    one = next(iter(replicas.values()))
    ordered = sorted(ranks.items(), key=lambda each: (-len(each[1]), each[1]))
    odd = odd_ranks([tuple(who) for _, who in ordered]) or reordering_ranks(replicas)
    ordered.sort(key=lambda each: each[1][0] in odd)
    (most, first), (other, second), *_ = ordered
    at = next(number for number, name in enumerate(most) if name != other[number])
    group = Group("world", one.ranks)
    blocks = []
    for order, who in ordered:
        samples = replicas[who[0]].samples
        site = site_of(samples[0].mark) if samples else None
        op = Op(who[0], f"{one.optimizer}.step", group, site=site)
        note = f"its parameters begin with {_listed(order)}"
        blocks.append(CallBlock(tuple(who), op, (note,), "<- differs" if who[0] in odd else ""))
    found = Finding(
        kind=KIND,
        severity="warning",
        ranks=odd,
        headline=(
            f"{name_ranks(second)} gave {one.optimizer} the parameters of {one.title} in "
            f"another order than {name_ranks(first)}: "
            f'parameter {at} is "{other[at]}", not "{most[at]}"'
        ),
        blocks=tuple(blocks),
        facts=(
            ("rule", "the state of an optimizer is saved, loaded and sharded by that number"),
        ),
        hint="go through the parameters in one order on all ranks; a set has none",
    )
    return with_making(found, one.optimizer)
