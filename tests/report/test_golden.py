"""Every error text, compared with a golden file under `golden/`.

The verdicts come from the checks wherever a check makes them, so these tests also hold the
two layers together. `mismatch_operation.txt` and `deadlock_cycle.txt` are the models of the
design document to the column. To write the files anew after a change that is meant:

    PHALANX_UPDATE_GOLDEN=1 pytest tests/report/test_golden.py

and read the difference before you keep it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.checks.error_handlers import with_handled
from phalanx.checks.group_lifecycle import Destroyed, find_destroy_mismatch, find_kept_group
from phalanx.checks.in_flight_buffer import Touch, find_in_flight
from phalanx.checks.replicas.replica_samples import Replica, Sample, SamplerFacts
from phalanx.checks.replicas.sampler_drift import find_other_samplers
from phalanx.checks.results.cut_graph import find_cut
from phalanx.checks.results.dropped_copy import find_lost
from phalanx.checks.results.noted_results import Cut, Lost, OffRoot
from phalanx.checks.results.off_root import find_read_off_root
from phalanx.checks.unmatched_message import find_leftovers
from phalanx.checks.unwaited_work import Unwaited, find_unwaited, find_used_unwaited
from phalanx.matching.agreement import find_mismatch, find_pair_mismatch, find_reshaped
from phalanx.matching.groups import find_creation_mismatch, find_missing_creation
from phalanx.matching.other_group import find_other_group
from phalanx.matching.waitgraph import find_deadlock
from phalanx.model import (
    CallBlock,
    Caller,
    Deadlock,
    Finding,
    Group,
    Handling,
    Leave,
    Meeting,
    Op,
    RankFailure,
    RankView,
    Site,
    Snapshot,
    Stall,
    TensorSpec,
    Verdict,
    ViewBlock,
    Wait,
)
from phalanx.report.text import headline, render

GOLDEN = Path(__file__).parent / "golden"
WORLD = Group("world", (0, 1, 2, 3))
REDUCE = Site("train.py", 58, "train_step", "dist.all_reduce(grad)")
BARRIER = Site("train.py", 63, "train_step", "dist.barrier()")
GRAD = (TensorSpec("float32", (1024,)),)


def all_reduce(rank: int, number: int = 12, **changes: object) -> Op:
    op = Op(rank, "all_reduce", WORLD, number, reduce_op="SUM", inputs=GRAD, site=REDUCE)
    return replace(op, **changes)  # type: ignore[arg-type]


def barrier(rank: int, number: int = 12) -> Op:
    return Op(rank, "barrier", WORLD, number, site=BARRIER)


def broadcast(rank: int, root: int) -> Op:
    site = Site("model.py", 17, "sync", "dist.broadcast(weights, src=root)")
    return Op(rank, "broadcast", WORLD, 3, root=root, inputs=GRAD, site=site)


def meet(*ops: Op, history: dict[int, tuple[Op, ...]] | None = None) -> Verdict | None:
    return find_mismatch(Meeting(WORLD, ops[0].number or 0, ops, history or {}))


def usual_history() -> dict[int, tuple[Op, ...]]:
    return {
        rank: tuple(
            all_reduce(rank, number) if number % 2 == 0 else barrier(rank, number)
            for number in range(12)
        )
        for rank in WORLD.ranks
    }


def mismatch_operation() -> Verdict | None:
    ops = [all_reduce(rank) if rank != 2 else barrier(rank) for rank in WORLD.ranks]
    return meet(*ops, history=usual_history())


def mismatch_shape() -> Verdict | None:
    last = (TensorSpec("float32", (1000,)),)
    return meet(*(all_reduce(r, inputs=last if r == 3 else GRAD) for r in WORLD.ranks))


def mismatch_dtype() -> Verdict | None:
    half = (TensorSpec("bfloat16", (1024,)),)
    history = {0: (barrier(0, 0),)}
    ops = [all_reduce(r, 1, inputs=half if r == 0 else GRAD) for r in WORLD.ranks]
    return meet(*ops, history=history)


def mismatch_root() -> Verdict | None:
    return meet(*(broadcast(rank, root=rank) for rank in WORLD.ranks))


def mismatch_two_against_two() -> Verdict | None:
    return meet(*(all_reduce(r, 0) if r < 2 else barrier(r, 0) for r in WORLD.ranks))


def mismatch_partial() -> Verdict | None:
    return meet(all_reduce(0), all_reduce(1), all_reduce(2, reduce_op="MAX"))


def mismatch_splits() -> Verdict | None:
    site = Site("moe.py", 90, "dispatch", "dist.all_to_all_single(out, x, outs, ins)")
    ops = []
    for rank in WORLD.ranks:
        rows = TensorSpec("float32", (8, 16))
        ins = (2, 2, 3, 1) if rank == 1 else (2, 2, 2, 2)
        op = Op(rank, "all_to_all_single", WORLD, 4, inputs=(rows,), outputs=(rows,), site=site)
        ops.append(replace(op, input_splits=ins, output_splits=(2, 2, 2, 2)))
    return meet(*ops)


def mismatch_slots() -> Verdict | None:
    site = Site("eval.py", 24, "collect", "dist.all_gather(parts, mine)")
    slots = (TensorSpec("float32", (4,)),) * 4
    ops = [Op(r, "all_gather", WORLD, 0, inputs=slots[:1], outputs=slots) for r in WORLD.ranks]
    ops[1] = replace(ops[1], inputs=(TensorSpec("float32", (5,)),))
    return meet(*(replace(op, site=site) for op in ops))


def mismatch_pair() -> Verdict | None:
    send = Site("pipe.py", 20, "push", "dist.send(x, dst=1)")
    recv = Site("pipe.py", 31, "pull", "dist.recv(buf, src=0)")
    return find_pair_mismatch(
        Op(0, "send", WORLD, peer=1, tag=0, inputs=(TensorSpec("float32", (256,)),), site=send),
        Op(1, "recv", WORLD, peer=0, tag=0, outputs=(TensorSpec("int64", (128,)),), site=recv),
    )


def receive(rank: int, peer: int | None, tag: int = 0) -> Op:
    site = Site("pipeline.py", 41, "exchange", "dist.recv(buf, src=peer)")
    specs = (TensorSpec("float32", (256,)),)
    return Op(rank, "recv", WORLD, peer=peer, tag=tag, outputs=specs, site=site)


def waiting(op: Op, *needs: int, any_of: bool = False, near: tuple[str, ...] = ()) -> RankView:
    return RankView(op.rank, "waiting", Wait(op, needs, any_of, near), last=op)


def at_barrier(rank: int, *needs: int, number: int) -> RankView:
    site = Site("pipeline.py", 70, "main", "dist.barrier()")
    return waiting(Op(rank, "barrier", WORLD, number, site=site), *needs)


def deadlock_cycle() -> Verdict | None:
    views = [waiting(receive(0, 1), 1), waiting(receive(1, 0), 0)]
    views += [at_barrier(2, 0, 1, number=5), at_barrier(3, 0, 1, number=5)]
    return find_deadlock(Snapshot(tuple(views)))


def deadlock_finished_peer() -> Verdict | None:
    gone = RankView(3, "finished", last=all_reduce(3, 8))
    views = [at_barrier(rank, 3, number=9) for rank in range(3)]
    return find_deadlock(Snapshot((*views, gone)))


def deadlock_finished_sender() -> Verdict | None:
    gone = [RankView(rank, "finished", last=all_reduce(rank, 8)) for rank in (1, 2)]
    near = ("rank 1 sent tag 1",)
    views = [waiting(receive(0, 1, tag=2), 1, near=near), *gone, at_barrier(3, 0, number=9)]
    return find_deadlock(Snapshot(tuple(views), in_flight=1))


def deadlock_failed_peer() -> Verdict | None:
    site = Site("train.py", 40, "load", 'raise ValueError("bad batch")')
    failed = RankView(3, "failed", None, all_reduce(3, 8), site, "ValueError: bad batch")
    views = [at_barrier(rank, 3, number=9) for rank in range(3)]
    return find_deadlock(Snapshot((*views, failed)))


def deadlock_store_key() -> Verdict | None:
    site = Site("setup.py", 9, "rendezvous", 'store.get("address")')
    wait = waiting(Op(0, "get", WORLD, key="address", site=site), 1, 2, 3, any_of=True)
    views = [wait, *(at_barrier(rank, 0, number=0) for rank in (1, 2))]
    return find_deadlock(Snapshot((*views, RankView(3, "finished"))))


def deadlock_two_groups() -> Verdict | None:
    left = Group("left", tuple(range(1024)))
    right = Group("right", tuple(range(1024)))
    site = Site("groups.py", 12, "main", "dist.barrier(group)")
    low, high = tuple(range(512)), tuple(range(512, 1024))
    views = [waiting(Op(r, "barrier", left, 0, site=site), *high) for r in low]
    views += [waiting(Op(r, "barrier", right, 0, site=site), *low) for r in high]
    return find_deadlock(Snapshot(tuple(views)))


def deadlock_ring() -> Verdict | None:
    ring = [waiting(receive(rank, (rank + 1) % 64), (rank + 1) % 64) for rank in range(64)]
    return find_deadlock(Snapshot(tuple(ring)))


def stall() -> Verdict:
    main = Site("train.py", 80, "main", "step(model)")
    slow = Site("train.py", 40, "load", "time.sleep(3600)")
    loader = RankView(2, "outside", last=barrier(2, 11), site=slow)
    blocks = (ViewBlock((0, 1, 3), waiting(all_reduce(0), 2)), ViewBlock((2,), loader))
    stacks = {0: (main, REDUCE), 1: (main, REDUCE), 2: (main, slow), 3: (REDUCE,)}
    return Stall("stall", "error", (2,), seconds=30.0, blocks=blocks, stacks=stacks)


FAILED = Site("train.py", 38, "load", 'rate = config["lr"]')
FORWARD = Site("train.py", 55, "train_step", "loss = model(batch)")
RAISED = Site("train.py", 40, "load", 'raise ValueError("bad batch")')


def mismatch_handled() -> Verdict | None:
    found = meet(*(barrier(r) if r == 2 else all_reduce(r) for r in range(4)))
    handling = Handling("ValueError: bad batch", RAISED, BARRIER)
    return found and with_handled(found, {2: handling})


def deadlock_handled() -> Verdict | None:
    """Rank 1 leaves by an error, and its handler waits on another group."""
    pair = Group("pair", (0, 1))
    save = Site("train.py", 70, "save", "dist.barrier(group=pair)")
    saving = Op(1, "barrier", pair, 0, site=save)
    views = [
        RankView(1, "waiting", Wait(saving, (0,)), saving),
        *(replace(waiting(all_reduce(rank), 1), rank=rank) for rank in (0, 2, 3)),
    ]
    found = find_deadlock(Snapshot(tuple(views)))
    return found and with_handled(found, {1: Handling("KeyError: 'lr'", FAILED, save)})


def stall_handled() -> Verdict:
    slow = Site("train.py", 40, "load", "time.sleep(3600)")
    failed = Handling("OutOfMemoryError: CUDA out of memory", FORWARD, slow)
    return with_handled(stall(), {2: failed})


def mismatch_handled_by_all() -> Verdict | None:
    """All ranks went the same way, so the error explains nothing."""
    found = meet(*(broadcast(rank, 0 if rank < 3 else 1) for rank in range(4)))
    site = Site("model.py", 17, "sync", "dist.broadcast(weights, src=root)")
    handling = Handling("ImportError: No module named 'apex'", RAISED, site)
    return found and with_handled(found, dict.fromkeys(range(4), handling))


def deadlock_left() -> Verdict | None:
    """Two ranks have left, each in its own way; the others wait in a wrapper."""
    wrapper = Site("utils/dist.py", 12, "sync", "dist.barrier()")
    caller = Site("train.py", 90, "main", "sync()")
    done = Site("train.py", 88, "main", "return")
    leave = Site("train.py", 20, "on_signal", "sys.exit(0)")
    sync = [Op(rank, "barrier", WORLD, 9, site=wrapper) for rank in (0, 1)]
    last = [all_reduce(rank, 8) for rank in range(4)]
    views = [
        *(waiting(op, 2, 3) for op in sync),
        RankView(2, "finished", last=last[2], left=Leave("return", done)),
        RankView(3, "finished", last=last[3], left=Leave("exit", leave, "SIGTERM")),
    ]
    found = find_deadlock(Snapshot(tuple(views)))
    return found and replace(found, callers=(Caller((0, 1), wrapper, caller),))


def unmatched_message() -> Verdict:
    site = Site("pipeline.py", 41, "exchange", "dist.isend(out, dst=peer)")
    op = Op(0, "send", WORLD, peer=1, tag=3, inputs=GRAD, site=site)
    near = ("rank 0 sent tag 3; rank 1 waits for tag 4",)
    return find_leftovers([Wait(op, (1,), near=near)])[0]


def unmatched_messages() -> Verdict:
    site = Site("ring.py", 9, "shift", "dist.irecv(buf, src=left)")
    ops = [
        Op(r, "recv", WORLD, peer=(r - 1) % 3, tag=0, outputs=GRAD, site=site) for r in range(3)
    ]
    return find_leftovers([Wait(op, (op.peer or 0,)) for op in ops])[0]


def unwaited_work() -> Verdict:
    return find_leftovers([Wait(all_reduce(rank), (2, 3)) for rank in (1, 0)])[0]


def stall_over_limit() -> Verdict:
    verdict = stall()
    assert isinstance(verdict, Stall)
    return replace(verdict, over_limit=True)


def failure(
    *raised: tuple[tuple[int, ...], str], stopped: tuple[ViewBlock, ...] = ()
) -> RankFailure:
    site = Site("train.py", 40, "load", 'raise ValueError("bad batch")')
    ranks = tuple(rank for group, _ in raised for rank in group)
    sites = dict.fromkeys(ranks, site)
    return RankFailure("rank-failed", "error", ranks, raised, sites, stopped)


def rank_failed() -> Verdict:
    stopped = (ViewBlock((0, 1, 3), waiting(all_reduce(0), 2)),)
    return failure(((2,), "ValueError: bad batch"), stopped=stopped)


def ranks_failed_alike() -> Verdict:
    return failure(((0, 1, 2, 3), "ValueError: bad batch\nexpected 32 samples, found 31"))


def wrong_call(rank: int, **changes: object) -> Finding:
    site = Site("model.py", 17, "sync", "dist.broadcast(weights, src=0, group=pair)")
    pair = Group("group 1", (2, 3))
    op = Op(rank, "broadcast", pair, root=0, inputs=GRAD, site=site)
    return Finding(
        "invalid-call",
        "error",
        (rank,),
        headline="",
        blocks=(CallBlock((rank,), replace(op, **changes), ("rank 0 is not in it",)),),  # type: ignore[arg-type]
        facts=(("from", "train.py:80 in main"),),
        hint="src is a rank of the world; rank 0 of the group is rank 2: write group_src=0",
    )


def invalid_call() -> Verdict:
    stopped = (ViewBlock((0, 1), waiting(all_reduce(0), 2)),)
    verdict = failure(((2, 3), "ValueError: rank 0 is not in it"), stopped=stopped)
    calls = {rank: wrong_call(rank) for rank in (2, 3)}
    return replace(verdict, kind="invalid-call", calls=calls)


def invalid_calls_of_two_kinds() -> Verdict:
    verdict = failure(((3,), "x"), ((2,), "ValueError: y"), ((0,), "KeyError: 'k'"))
    calls = {2: wrong_call(2), 3: wrong_call(3, root=9)}
    return replace(verdict, kind="invalid-call", calls=calls)


def mismatch_with_names() -> Verdict:
    verdict = meet(all_reduce(0), all_reduce(1), all_reduce(2), barrier(3))
    assert verdict is not None
    lacking = 'rank 3 has no gradient for "fc2.weight", "fc2.bias" of the DDP model'
    return replace(verdict, names=(("gradient", f"{lacking}; ranks 0-2 have one"),))


def rank_failed_late_and_stuck() -> Verdict:
    computing = RankView(3, "computing", site=Site("train.py", 44, "load"))
    stopped = (ViewBlock((0,), waiting(all_reduce(0), 2)), ViewBlock((3,), computing))
    verdict = failure(((2,), "ValueError: bad batch"), ((1,), "KeyError: 'x'"), stopped=stopped)
    lookup = Site("train.py", 51, "step", 'batch["x"]')
    return replace(
        verdict,
        sites={**verdict.sites, 1: lookup},
        late=((0, "RuntimeError: cleanup failed"),),
        stuck=((3, Site("train.py", 90, "spin", "while True: pass")), (4, None)),
    )


def found(verdict: Verdict | None) -> Verdict:
    assert verdict is not None
    return verdict


def deadlock_partial() -> Verdict:
    site = Site("pipeline.py", 41, "exchange", "dist.recv(buf, src=peer)")
    views = [
        waiting(Op(rank, "recv", WORLD, peer=1 - rank, tag=0, inputs=GRAD, site=site), 1 - rank)
        for rank in (0, 1)
    ]
    moving = (RankView(2, "computing"), RankView(3, "sleeping"))
    return found(find_deadlock(Snapshot((*views, *moving)), partial=True))


def deadlock_joined_thread() -> Verdict:
    join = Site("train.py", 80, "finish", "reducer.join()")
    op = Op(0, "threading.Thread.join", WORLD, site=join)
    main = RankView(0, "waiting", Wait(op, (), joins="reducer"))
    thread = replace(waiting(all_reduce(0), 1, 2, 3), thread="reducer")
    source = Site("pipeline.py", 41, "exchange", "dist.recv(buf, src=0)")
    others = [
        waiting(Op(rank, "recv", WORLD, peer=0, tag=0, inputs=GRAD, site=source), 0)
        for rank in (1, 2, 3)
    ]
    verdict = found(find_deadlock(Snapshot((main, *others), threads=(thread,))))
    assert isinstance(verdict, Deadlock)
    way = "ranks 1-3 went train.py:63 -> pipeline.py:41; rank 0 went train.py:63 -> train.py:58"
    return replace(verdict, parted=f"{way} (call #12)")


def new_group(rank: int, *members: int) -> Op:
    site = Site("groups.py", 12, "make", "dist.new_group(ranks)")
    return Op(rank, "new_group", Group("gloo", members), site=site)


def mismatch_new_group() -> Verdict:
    made = {rank: [new_group(rank, 0, 1), new_group(rank, 2, 3)] for rank in range(4)}
    made[2].reverse()
    return found(find_creation_mismatch(made, 0))


def mismatch_new_group_by_some() -> Verdict:
    made = {rank: [new_group(rank, 0, 1)] if rank < 2 else [] for rank in range(4)}
    return found(find_missing_creation(made))


def destroyed(rank: int, *groups: str) -> list[Destroyed]:
    site = Site("groups.py", 30, "close", "dist.destroy_process_group(group)")
    name = "destroy_process_group"
    ops = [Op(rank, name, Group(each, (0, 1)), 3, site=site) for each in groups]
    return [Destroyed(op.group, op) for op in ops]


def mismatch_destroy_order() -> Verdict:
    one = destroyed(0, "group 1", "group 2")
    return found(find_destroy_mismatch({0: one, 1: destroyed(1, "group 2", "group 1")}))


def mismatch_destroy_by_some() -> Verdict:
    return found(find_kept_group({0: destroyed(0, "group 1"), 1: []}, {0: 5, 1: 5}))


def mismatch_other_group() -> Verdict:
    twin = Group("group 1", WORLD.ranks)
    site = Site("train.py", 60, "train_step", "dist.all_reduce(grad, group=twin)")
    waits = [Wait(all_reduce(rank), (2,)) for rank in (0, 1, 3)]
    odd = Wait(all_reduce(2, 0, group=twin, site=site), (0, 1, 3))
    return found(find_other_group([*waits, odd]))


def mismatch_message_on_other_group() -> Verdict:
    twin = Group("group 1", WORLD.ranks)
    site = Site("pipeline.py", 41, "exchange", "dist.recv(buf, src=0, group=twin)")
    send = Op(0, "send", WORLD, peer=1, tag=0, inputs=GRAD, site=REDUCE)
    recv = Op(1, "recv", twin, peer=0, tag=0, outputs=GRAD, site=site)
    return found(find_other_group([Wait(send, (1,)), Wait(recv, (0,))], [send]))


REPLAY = {
    "mismatch_operation": "phalanx run --ranks 4 --seed 7 train.py",
    "deadlock_cycle": "phalanx run --ranks 4 --seed 7 pipeline.py",
    "stall": "phalanx run --ranks 4 --seed 7 train.py",
    "rank_failed": "phalanx run --ranks 4 --seed 7 train.py",
}
LATER = Site("train.py", 58, "train_step", "work = dist.all_reduce(grad, async_op=True)")
CLIP = Site("train.py", 59, "train_step", "grad.clamp_(-1, 1)")


def in_flight_written() -> Verdict:
    return find_in_flight(Touch("written", all_reduce(2, site=LATER), by="clamp_", site=CLIP))


def in_flight_read() -> Verdict:
    line = Site("train.py", 59, "train_step", "print(grad.norm())")
    return find_in_flight(Touch("read", all_reduce(0, site=LATER), by="norm", site=line))


def in_flight_changed() -> Verdict:
    line = Site("train.py", 61, "train_step", "work.wait()")
    return find_in_flight(Touch("changed", all_reduce(0, site=LATER), site=line))


def in_flight_twice() -> Verdict:
    other = replace(broadcast(1, 0), number=13)
    return find_in_flight(Touch("used", all_reduce(1, site=LATER), other=other))


def unwaited_works() -> Verdict:
    line = Site("train.py", 64, "train_step", "loss = grad.norm()")
    left = [
        Unwaited(all_reduce(r, site=LATER), 12, line if r == 0 else None) for r in (0, 1, 3)
    ]
    return find_unwaited(left)[0]


def mismatch_shape_of_one_size() -> Verdict:
    shapes = [(2, 3), (2, 3), (3, 2), (2, 3)]
    ops = [
        replace(all_reduce(rank), inputs=(TensorSpec("float32", shape, "cpu"),))
        for rank, shape in enumerate(shapes)
    ]
    found = find_reshaped(Meeting(WORLD, 12, tuple(ops)))
    assert found is not None
    return found


def lost_result() -> Verdict:
    line = Site("train.py", 58, "train_step", "dist.all_reduce(grad.contiguous())")
    later = Site("train.py", 60, "train_step", "grad /= world")
    lost = [
        Lost(all_reduce(r, site=line), "grad.contiguous()", "grad", False) for r in range(4)
    ]
    return find_lost(lost, used=("grad", later))


def lost_result_of_an_object() -> Verdict:
    line = Site("meter.py", 12, "sync", "dist.all_reduce(self.sum.to(device))")
    lost = [Lost(all_reduce(1, site=line), "self.sum.to(device)", "self.sum", True)]
    return find_lost(lost, used=None)


def lost_result_off_root() -> Verdict:
    line = Site("train.py", 40, "validate", "dist.reduce(loss, dst=0)")
    later = Site("train.py", 71, "main", "if loss.item() < best:")
    op = replace(all_reduce(1, site=line), name="reduce", root=0)
    calls = [OffRoot(replace(op, rank=rank), ()) for rank in (1, 2, 3)]
    return find_read_off_root(calls, name="loss", text="loss.item() < best", at=later)


def lost_result_cut_graph() -> Verdict:
    line = Site("loss.py", 12, "gather", "dist.all_gather(out, features)")
    caller = Site("loss.py", 30, "forward", "logits = image @ gather(text).t()")
    end = Site("train.py", 58, "train_step", "loss.backward()")
    own, others = (
        (TensorSpec("float32", (8, 64), "cpu"),),
        (TensorSpec("float32", (8, 64), "cpu"),),
    )
    op = replace(
        all_reduce(0, site=line),
        name="all_gather",
        reduce_op=None,
        inputs=own,
        outputs=others * 4,
    )
    calls = [Cut(replace(op, rank=rank), ()) for rank in range(4)]
    return find_cut(calls, output="out", loss="loss", at=end, by=caller)


def replica_drift_of_samplers() -> Verdict:
    line = Site("train.py", 58, "train_step", "optimizer.step()")
    replicas = {}
    for rank in range(4):
        length = 1000 - (rank == 2)
        facts = SamplerFacts("sampler", rank, 4, True, 0, 0, False, 1000, length)
        sample = Sample(1, 0, False, 1, 0.0, line, (5,), (0,), (), (facts,))
        named = ("weight",), ((2, 2),), ("weight",)
        replicas[rank] = Replica(
            (0, 1, 2, 3), 0, "DDP(Net)", "here", "SGD", *named, samples=(sample,)
        )
    found = find_other_samplers(replicas)
    assert found is not None
    return found


def unwaited_and_used() -> Verdict:
    line = Site("train.py", 64, "train_step", "loss = grad.norm()")
    touch = Touch("read", all_reduce(1, site=LATER), by="norm", site=line)
    return find_used_unwaited(touch)


def unwaited_functional() -> Verdict:
    line = Site("model.py", 9, "forward", 'funcol.all_reduce(x, "sum", group)')
    return find_unwaited([Unwaited(all_reduce(2, site=line), functional=True)])[0]


CASES = [
    in_flight_changed,
    in_flight_read,
    in_flight_twice,
    in_flight_written,
    mismatch_shape_of_one_size,
    lost_result,
    lost_result_of_an_object,
    lost_result_off_root,
    lost_result_cut_graph,
    replica_drift_of_samplers,
    unwaited_and_used,
    unwaited_functional,
    unwaited_works,
    mismatch_operation,
    mismatch_shape,
    mismatch_dtype,
    mismatch_root,
    mismatch_two_against_two,
    mismatch_partial,
    mismatch_splits,
    mismatch_slots,
    mismatch_pair,
    deadlock_cycle,
    deadlock_finished_peer,
    deadlock_finished_sender,
    deadlock_failed_peer,
    deadlock_store_key,
    deadlock_two_groups,
    deadlock_ring,
    deadlock_partial,
    deadlock_joined_thread,
    mismatch_new_group,
    mismatch_new_group_by_some,
    mismatch_destroy_order,
    mismatch_destroy_by_some,
    mismatch_other_group,
    mismatch_message_on_other_group,
    stall,
    stall_over_limit,
    mismatch_handled,
    mismatch_handled_by_all,
    deadlock_handled,
    deadlock_left,
    stall_handled,
    unmatched_message,
    unmatched_messages,
    unwaited_work,
    rank_failed,
    ranks_failed_alike,
    invalid_call,
    mismatch_with_names,
    invalid_calls_of_two_kinds,
    rank_failed_late_and_stuck,
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@each_case
def test_text_is_that_of_the_golden_file(case) -> None:  # type: ignore[no-untyped-def]
    name = case.__name__
    text = render(case(), replay=REPLAY.get(name)) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        path.write_text(text, encoding="ascii")
    assert text == path.read_text(encoding="ascii")


@each_case
def test_text_keeps_to_ascii_and_88_columns(case) -> None:  # type: ignore[no-untyped-def]
    text = render(case())
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 88
    assert all(line == line.rstrip() for line in text.splitlines())


@each_case
def test_headline_is_the_first_line(case) -> None:  # type: ignore[no-untyped-def]
    assert headline(case()) == render(case()).splitlines()[0]


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {case.__name__ for case in CASES}


def test_unknown_verdict_is_refused() -> None:
    with pytest.raises(TypeError, match="no report for a Verdict"):
        render(Verdict("stall", "error", ()))
    with pytest.raises(TypeError, match="no headline for a Verdict"):
        headline(Verdict("stall", "error", ()))
