"""Barriers: plain, asynchronous, in groups, and the one that says who is missing."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from phalanx.conformance.case_context import GROUPS, Context
from phalanx.conformance.family import Family

family = Family("barriers")
cases, PROGRAMS = family.cases, family.programs

SHAPES = ("full", "sub", "single")
SOON = timedelta(seconds=5)


@family.case(
    "barrier",
    "in",
    over={"mode": ("sync", "async"), "group": SHAPES},
    least=3,
)
def barrier(me: Context, mode: str, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members:
        return
    work = dist.barrier(group=handle, async_op=mode == "async")
    me.check((work is not None) == (mode == "async"), f"returned {work!r}")
    if work is not None:
        work.wait()


@family.case("barrier", "not in the group", over={"mode": ("sync", "async")}, least=3)
def barrier_outside(me: Context, mode: str) -> None:
    work = dist.barrier(group=me.group("sub"), async_op=mode == "async")
    if me.rank == 0:
        me.check(work is None, f"returned {work!r} to a rank that is not in the group")
    elif work is not None:
        work.wait()


@family.case("barrier", "holds everybody", least=2)
def holds_everybody(me: Context) -> None:
    """No rank leaves before the last has come: each sees what the others wrote before."""
    folder = me.scratch / me.name("barrier")
    folder.mkdir(exist_ok=True)
    (folder / str(me.rank)).write_text("here")
    dist.barrier()
    found = sorted(int(path.name) for path in folder.iterdir())
    me.equal(found, list(range(me.size)), "who had come")


@family.case("barrier", "device_ids")
def device_ids(me: Context) -> None:
    dist.barrier(device_ids=[0])


@family.case(
    "monitored_barrier",
    "in",
    over={"group": SHAPES, "every": (False, True)},
    least=3,
    needs="monitored_barrier",
)
def monitored(me: Context, group: str, every: bool) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank in members:
        dist.monitored_barrier(handle, timeout=SOON, wait_all_ranks=every)


@family.case(
    "monitored_barrier", "again and again", over={"times": (5,)}, needs="monitored_barrier"
)
def monitored_again(me: Context, times: int) -> None:
    for _ in range(times):
        dist.monitored_barrier(timeout=SOON)


@family.case(
    "monitored_barrier",
    "one is missing",
    over={"every": (False, True)},
    least=2,
    ranks=(2, 3),
    alone=True,
    needs="monitored_barrier",
)
def one_is_missing(me: Context, every: bool) -> None:
    group = me.fresh(timeout=me.short)
    last = me.size - 1
    if me.rank == last:
        return
    error = me.raises(
        RuntimeError,
        lambda: dist.monitored_barrier(
            group, timeout=timedelta(milliseconds=300), wait_all_ranks=every
        ),
        "monitored_barrier",
    )
    if me.rank == 0:
        me.check(str(last) in str(error), f"does not name rank {last}: {error}")


@family.case(
    "monitored_barrier",
    "several are missing",
    ranks=(4,),
    alone=True,
    needs="monitored_barrier",
)
def several_are_missing(me: Context) -> None:
    group = me.fresh(timeout=me.short)
    if me.rank != 0:
        return
    error = me.raises(
        RuntimeError,
        lambda: dist.monitored_barrier(
            group, timeout=timedelta(milliseconds=300), wait_all_ranks=True
        ),
        "monitored_barrier",
    )
    me.check(all(name in str(error) for name in "123"), f"does not name 1, 2, 3: {error}")


@family.case(
    "monitored_barrier",
    "rank 0 is missing",
    ranks=(2,),
    alone=True,
    raises=("RuntimeError",),
    everywhere=False,
    needs="monitored_barrier",
)
def first_is_missing(me: Context) -> None:
    group = me.fresh(timeout=me.short)
    if me.rank:
        dist.monitored_barrier(group, timeout=timedelta(milliseconds=300))
