"""Right programs in which one rank is slow, found in the middle: nobody is blamed, whatever is
missing of the dumps."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from phalanx.explain.dump_replay import replay
from phalanx.explain.rank_dump import DumpedCall, DumpedGroup, RankDump, ThreadStack
from phalanx.model import Site, Stall, TensorSpec

NAMES = ("all_reduce", "barrier", "broadcast", "all_gather", "reduce", "send")


@dataclass
class Program:
    """Calls in one order that all ranks keep to: on a group, or a message of two ranks."""

    ranks: int
    groups: dict[str, tuple[int, ...]]
    calls: list[tuple[str, str, tuple[int, ...]]]
    """Name, group and who takes part: its members, or the sender and the receiver."""


def make_program(chance: random.Random, *, messages: bool) -> Program:
    ranks = chance.randint(2, 5)
    groups = {"0": tuple(range(ranks))}
    for number in range(1, chance.randint(1, 4)):
        size = chance.randint(2, ranks)
        groups[str(number)] = tuple(sorted(chance.sample(range(ranks), size)))
    calls = []
    for _ in range(chance.randint(3, 14)):
        name = chance.choice(NAMES if messages else NAMES[:-1])
        group = chance.choice(list(groups))
        if name == "send":
            calls.append((name, "0", tuple(chance.sample(range(ranks), 2))))
        else:
            calls.append((name, group, groups[group]))
    return Program(ranks, groups, calls)


def stop(program: Program, slow: int, after: int) -> dict[int, list[DumpedCall]]:
    """The calls of each rank when `slow` has made `after` of its own and computes; the others
    have gone as far as they can. A send waits for its receive."""
    made: dict[int, list[DumpedCall]] = {rank: [] for rank in range(program.ranks)}
    numbers = dict.fromkeys(program.groups, 0)
    stuck = dict.fromkeys(range(program.ranks), False)
    for place, (name, group, takers) in enumerate(program.calls):
        number = None if name == "send" else numbers[group]
        numbers[group] += name != "send"
        there = [
            rank
            for rank in takers
            if not stuck[rank] and not (rank == slow and len(made[slow]) >= after)
        ]
        done = len(there) == len(takers)
        for rank in there:
            made[rank].append(_call(name, group, number, takers, rank, place, done))
            stuck[rank] = not done
        if slow in takers and slow not in there:
            stuck[slow] = True
    return made


def _call(
    name: str,
    group: str,
    number: int | None,
    takers: tuple[int, ...],
    rank: int,
    place: int,
    done: bool,
) -> DumpedCall:
    specs = (TensorSpec("float32", (1 + place % 3,)),)
    site = Site("train.py", place, "step")
    if name == "send":
        sends = rank == takers[0]
        return DumpedCall(
            "send" if sends else "recv",
            group,
            peer=takers[1 if sends else 0],
            tag=0,
            inputs=specs if sends else (),
            outputs=() if sends else specs,
            site=site,
            done=done,
        )
    return DumpedCall(
        name,
        group,
        number,
        root=0 if name in ("broadcast", "reduce") else None,
        reduce_op="SUM" if "reduce" in name else None,
        inputs=() if name == "barrier" else specs,
        outputs=specs * len(takers) if name == "all_gather" else (),
        site=site,
        done=done,
    )


def dump_of(rank: int, calls: list[DumpedCall], program: Program, *, gloo: bool) -> RankDump:
    """`gloo`: as torch's recorder leaves it there, without members, messages and stacks."""
    if gloo:
        used = {call.group for call in calls}
        groups = {key: DumpedGroup(key, key, None) for key in used}
        kind = "Flight Recorder"
        return RankDump(rank, f"{rank}", kind, groups, calls, records_messages=False)
    groups = {
        key: DumpedGroup(key, key, ranks)
        for key, ranks in program.groups.items()
        if rank in ranks
    }
    dump = RankDump(rank, f"{rank}", "black box", groups, calls, world=program.ranks)
    waits = len(calls) - 1 if calls and not calls[-1].done else None
    dump.threads = [ThreadStack("main", (), is_main=True, waits_in=waits)]
    return dump


@pytest.mark.parametrize("gloo", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_a_slow_rank_is_a_stall_at_most(seed: int, gloo: bool) -> None:
    chance = random.Random(seed)
    program = make_program(chance, messages=not gloo)
    slow = chance.randrange(program.ranks)
    made = stop(program, slow, chance.randint(0, 6))
    late = chance.random() < 0.4
    dumps = {}
    for rank, calls in made.items():
        dump = dump_of(rank, calls, program, gloo=gloo)
        lost = chance.randint(0, max(0, len(calls) - 1)) if late else 0
        if lost:
            dump = _late(dump, lost)
        dumps[rank] = dump
    for absent in (None, *range(program.ranks)):
        some = {rank: dump for rank, dump in dumps.items() if rank != absent}
        done = replay(some, program.ranks)
        assert done.verdict is None or isinstance(done.verdict, Stall), absent
        assert not done.unmet
        if gloo and absent == program.ranks - 1:  # nobody tells that there is one more
            verdict = replay(some, program.ranks - 1).verdict
            assert verdict is None or isinstance(verdict, Stall)


def _late(dump: RankDump, lost: int) -> RankDump:
    """The ring was full, and the first calls are gone."""
    threads = [
        replace(each, waits_in=None if each.waits_in is None else each.waits_in - lost)
        for each in dump.threads
    ]
    return replace(dump, calls=dump.calls[lost:], threads=threads, begins_late=True)
