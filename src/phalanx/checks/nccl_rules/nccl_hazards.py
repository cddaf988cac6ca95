"""What a run did that passed where it ran and that NCCL may hang on, mix up or refuse. Pure.

The engines give a `NcclTrace`: for each rank what it issued, in order. Each rule states its
source; `docs/profiles.md` has the same table for users.

rule              what is seen                                            in
opposite-orders   calls that would stand still one after the other        nccl_order
unbatched         messages of two ranks, or around a ring, that would too nccl_order
ignored-tags      receives that take by tag another message than in order nccl_messages
half-batched      a message batched on one side only                      nccl_messages
first-batch       a batch is the first use of a group, not by all of it   here
any-source        a receive from any source                               here
monitored-barrier which is Gloo's alone                                   here
one-device        ranks of one machine on one GPU                         here

Not reported, although torch's documentation asks for more: asynchronous operations of several
groups under way at once, in the same order everywhere. FSDP does that, and it works.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Group, Op, Severity

MOST_FINDINGS = 20


class Issued(NamedTuple):
    """One call as a rank issued it. `group` counts in the trace's groups, `peer` is a rank of
    the world, `batch` is equal for calls launched at once. `place` tells lines apart, and
    `posted` is what the journal has of it."""

    rank: int
    thread: int
    group: int
    name: str
    number: int | None = None
    peer: int | None = None
    tag: int | None = None
    batch: int | None = None
    place: Hashable = None
    posted: Any = None

    @property
    def is_message(self) -> bool:
        return self.name in ("send", "recv")


@dataclass(frozen=True)
class NcclTrace:
    """What ranks issued on groups that are NCCL's or stand for them.

    `whole` says that no rank's record was cut off. A group in `eager` had its communicator
    when it was made (the program bound a device to it)."""

    groups: tuple[Group, ...]
    ranks: tuple[tuple[Issued, ...], ...]
    whole: bool = True
    eager: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Law:
    """What a backend asks for, where that is written, and what to write instead."""

    name: str
    says: str
    source: str
    hint: str


@dataclass(frozen=True)
class Hazard:
    """One breach of a law, before it has words for its calls. Equal `key`s are told once."""

    law: Law
    key: Hashable
    ranks: tuple[int, ...]
    headline: str
    calls: tuple[tuple[tuple[int, ...], Issued, str], ...] = ()
    """Ranks that issued it, the call of the first of them, and a note."""
    facts: tuple[tuple[str, str], ...] = ()


FIRST_BATCH = Law(
    "first-batch",
    "if batch_isend_irecv is the first use of a group, all its members must take part",
    "torch.distributed.batch_isend_irecv, note on NCCL",
    "call a collective on the group first, such as dist.barrier(group), on all its members",
)
ANY_SOURCE = Law(
    "any-source",
    "NCCL cannot receive from just anyone",
    "torch's Backend.hpp: recvAnysource, which ProcessGroupNCCL does not override",
    "name the source",
)
MONITORED = Law(
    "monitored-barrier",
    "only Gloo has monitored_barrier",
    "torch.distributed.monitored_barrier",
    "use barrier, or a group of Gloo's: dist.new_group(backend='gloo')",
)
ONE_DEVICE = Law(
    "one-device",
    "with NCCL each rank of a machine needs a GPU of its own",
    "torch.distributed.init_process_group, on backend; NCCL refuses a GPU that is used twice",
    "set the device by LOCAL_RANK: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
)


def find_first_batches(trace: NcclTrace) -> Iterator[Hazard]:
    """Groups whose communicator would be made by a batch of messages of some members only."""
    if not trace.whole:
        return
    first: dict[tuple[int, int], Issued] = {}
    for calls in trace.ranks:
        for call in calls:
            if not call.is_message or call.batch is not None:
                first.setdefault((call.group, call.rank), call)
    for index, group in enumerate(trace.groups):
        began = {rank: first[index, rank] for rank in group.ranks if (index, rank) in first}
        batches = [call for call in began.values() if call.is_message]
        others = [rank for rank in group.ranks if rank not in {c.rank for c in batches}]
        if batches and others and index not in trace.eager:
            yield _first_batch(group, batches, [began.get(rank) for rank in others], others)


def _first_batch(
    group: Group,
    batches: Sequence[Issued],
    elsewhere: Iterable[Issued | None],
    others: list[int],
) -> Hazard:
    ranks = tuple(call.rank for call in batches)
    calls = [*each_place(batches, "the first use of the group here")]
    calls += each_place([call for call in elsewhere if call], "the first use of the group here")
    idle = [rank for rank, call in zip(others, elsewhere, strict=True) if call is None]
    facts = (("unused", f"{name_ranks(idle)} never used the group"),) if idle else ()
    return Hazard(
        FIRST_BATCH,
        (FIRST_BATCH.name, frozenset(call.place for call in batches)),
        ranks,
        f'group "{group.name}" begins with a batch of {name_ranks(ranks)} alone; NCCL may hang',
        tuple(calls),
        facts,
    )


def find_refused_calls(trace: NcclTrace) -> Iterator[Hazard]:
    """One for each line. What else NCCL refuses depends on tensors, and is not seen here."""
    found: dict[tuple[Law, Hashable], list[Issued]] = {}
    for issued in trace.ranks:
        for call in issued:
            if call.name == "monitored_barrier":
                found.setdefault((MONITORED, call.place), []).append(call)
            elif call.name == "recv" and call.peer is None:
                found.setdefault((ANY_SOURCE, call.place), []).append(call)
    for (law, place), calls in found.items():
        ranks = tuple(sorted({call.rank for call in calls}))
        if law is MONITORED:
            does = f"{_verb(ranks, 'calls', 'call')} monitored_barrier, which NCCL has not"
        else:
            does = f"{_verb(ranks, 'receives', 'receive')} from any source, which NCCL cannot"
        headline = f"{name_ranks(ranks)} {does}"
        yield Hazard(law, (law.name, place), ranks, headline, ((ranks, calls[0], ""),))


def find_shared_devices(
    used: Mapping[int, Mapping[int, Issued]], machine_of: Callable[[int], int]
) -> Iterator[Hazard]:
    """`used` tells for each rank the GPUs that it used, by index, and its first call there."""
    users: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(used):
        for index in used[rank]:
            users.setdefault((machine_of(rank), index), []).append(rank)
    for (_, index), ranks in sorted(users.items()):
        if len(ranks) > 1:
            yield Hazard(
                ONE_DEVICE,
                (ONE_DEVICE.name, index),
                tuple(ranks),
                f"{name_ranks(ranks)} share GPU {index}; NCCL refuses that or hangs",
                tuple(each_place([used[rank][index] for rank in ranks], "")),
            )


def as_findings(
    hazards: Iterable[Hazard], describe: Callable[[Issued], Op], severity: Severity
) -> list[Finding]:
    """One finding for each key, in the order in which they came up, and how often each did."""
    times: dict[Hashable, int] = {}
    where: dict[Hashable, set[int]] = {}
    first: dict[Hashable, Hazard] = {}
    for hazard in hazards:
        first.setdefault(hazard.key, hazard)
        times[hazard.key] = times.get(hazard.key, 0) + 1
        where.setdefault(hazard.key, set()).update(hazard.ranks)
    found = []
    for key, hazard in list(first.items())[:MOST_FINDINGS]:
        if times[key] > 1:
            seen = f"{times[key]} times, on {name_ranks(where[key])}; the first is shown"
            hazard = replace(hazard, facts=(*hazard.facts, ("seen", seen)))
        found.append(_finding(hazard, describe, severity))
    return found


def _finding(hazard: Hazard, describe: Callable[[Issued], Op], severity: Severity) -> Finding:
    law = hazard.law
    return Finding(
        kind="backend-hazard",
        severity=severity,
        ranks=hazard.ranks,
        headline=hazard.headline,
        blocks=tuple(
            CallBlock(ranks, describe(call), (note,) if note else ())
            for ranks, call, note in hazard.calls
        ),
        facts=(*hazard.facts, ("rule", f"{law.name}: {law.says}"), ("source", law.source)),
        hint=law.hint,
    )


def each_place(
    calls: Iterable[Issued], note: str
) -> Iterator[tuple[tuple[int, ...], Issued, str]]:
    """Calls that look the same, as one with several ranks."""
    alike: dict[Hashable, list[Issued]] = {}
    for call in calls:
        alike.setdefault((call.name, call.place, call.peer, call.tag), []).append(call)
    for group in alike.values():
        yield tuple(sorted({call.rank for call in group})), group[0], note


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several
