"""Class F: the right calls in the wrong order, too few of them, or too many."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug


@bug("F1", "mismatch", ranks=3, faulty=(1,), what="all_reduce meets all_gather")
def other_operation(rank: int, world: int) -> None:
    tensor = torch.ones(2)
    if rank == 1:
        dist.all_gather([torch.empty(2) for _ in range(world)], tensor)  # <- here
    else:
        dist.all_reduce(tensor)  # <- here


@bug("F2", "mismatch", ranks=3, faulty=(1,), what="one rank skips a collective, then a barrier")
def skips_one(rank: int, world: int) -> None:
    if rank != 1:
        dist.all_reduce(torch.ones(2))  # <- here
    dist.barrier()  # <- here


@bug("F4", "mismatch", what="all_reduce, broadcast meets broadcast, all_reduce")
def swapped_operations(rank: int, world: int) -> None:
    tensor = torch.ones(2)
    if rank == 0:
        dist.all_reduce(tensor)  # <- here
        dist.broadcast(tensor, src=0)
    else:
        dist.broadcast(tensor, src=0)  # <- here
        dist.all_reduce(tensor)


@bug("F5", "crossed-order", what="two all_reduces in the order of a dict that differs by rank")
def swapped_alike(rank: int, world: int) -> None:
    loss, accuracy = torch.ones(1), torch.zeros(1)
    if rank == 0:
        dist.all_reduce(loss)  # <- here
        dist.all_reduce(accuracy)  # <- here
    else:
        dist.all_reduce(accuracy)  # <- here
        dist.all_reduce(loss)  # <- here


@bug("F8", "mismatch|deadlock", ranks=4, what="new_group called by two of four ranks")
def new_group_by_some(rank: int, world: int) -> None:
    if rank < 2:
        pair = dist.new_group([0, 1])  # <- here
        dist.all_reduce(torch.ones(1), group=pair)
    dist.barrier()  # <- here


@bug("F12", "deadlock", faulty=None, what="a receive nobody sends to")
def nobody_sends(rank: int, world: int) -> None:
    if rank == 1:
        dist.recv(torch.empty(2), src=0)  # <- here


@bug("F14", "deadlock", ranks=4, faulty=range(4), what="a ring in which all receive first")
def ring_receives_first(rank: int, world: int) -> None:
    dist.recv(torch.empty(2), src=(rank - 1) % world)  # <- here
    dist.send(torch.ones(2), dst=(rank + 1) % world)


@bug("F15", "deadlock|mismatch", what="two groups in opposite order, synchronous")
def groups_in_opposite_order(rank: int, world: int) -> None:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (first, second) if rank == 0 else (second, first):
        dist.all_reduce(torch.ones(1), group=group)  # <- here


@bug("F31", "deadlock|mismatch", ranks=3, faulty=(2,), what="one rank has a batch less")
def one_batch_less(rank: int, world: int) -> None:
    for _ in range(4 - (rank == 2)):
        dist.all_reduce(torch.ones(2))  # <- here


@bug("F32", "mismatch", ranks=4, faulty=(0,), what="rank 0 evaluates in between")
def evaluates_in_between(rank: int, world: int) -> None:
    for step in range(3):
        if step == 2 and rank == 0:
            dist.reduce(torch.ones(1), dst=0)  # <- here
        dist.all_reduce(torch.ones(4))  # <- here


@bug("F34", "deadlock|mismatch", ranks=3, faulty=(0,), what="a barrier under if rank == 0")
def barrier_on_one(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(2))
    if rank == 0:
        dist.barrier()  # <- here


@bug(
    "F35",
    "deadlock",
    ranks=4,
    faulty=(0, 1),
    what="a cycle of receives with two bystanders in a barrier",
)
def cycle_and_bystanders(rank: int, world: int) -> None:
    if rank < 2:
        dist.recv(torch.empty(2), src=1 - rank)  # <- here
        dist.send(torch.ones(2), dst=1 - rank)
    dist.barrier()


@bug("F36", "deadlock", faulty=None, what="a store key that nobody sets")
def key_nobody_sets(rank: int, world: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("ready/0", "1")
    else:
        store.wait(["ready/1"])  # <- here
    dist.barrier()


@bug("F37", "mismatch", what="two new groups made in opposite order")
def new_groups_crossed(rank: int, world: int) -> None:
    lists = [[0], [0, 1]]
    for ranks in lists if rank == 0 else reversed(lists):
        dist.new_group(ranks)  # <- here
    dist.barrier()


@bug("F38", "crossed-order", ranks=4, what="gradients reduced in the order of a set of names")
def set_order(rank: int, world: int) -> None:
    weight, bias = torch.ones(8), torch.ones(8)
    for _ in range(3):
        if rank < 2:
            dist.all_reduce(weight)  # <- here
            dist.all_reduce(bias)  # <- here
        else:
            dist.all_reduce(bias)  # <- here
            dist.all_reduce(weight)  # <- here


@bug(
    "F39",
    "crossed-order",
    ranks=3,
    faulty=(2,),
    what="two broadcasts of equal size crossed on one rank",
)
def broadcasts_crossed(rank: int, world: int) -> None:
    mean, variance = torch.zeros(4), torch.ones(4)

    def share_mean() -> None:
        dist.broadcast(mean, src=0)  # <- here

    def share_variance() -> None:
        dist.broadcast(variance, src=0)  # <- here

    both = [share_mean, share_variance]
    for share in reversed(both) if rank == 2 else both:
        share()


@bug("F40", "deadlock|mismatch", ranks=4, faulty=(2,), what="one member skips its group's call")
def member_skips(rank: int, world: int) -> None:
    odd = dist.new_group([1, 2, 3])
    if rank in (1, 3):
        dist.all_reduce(torch.ones(1), group=odd)  # <- here
    dist.barrier()  # <- here


@bug("F41", "deadlock", what="two sends received in the other order of their tags")
def tags_in_other_order(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(1), dst=1, tag=1)  # <- here
        dist.send(torch.ones(1), dst=1, tag=2)
    else:
        dist.recv(torch.empty(1), src=0, tag=2)  # <- here
        dist.recv(torch.empty(1), src=0, tag=1)


@bug("F42", "deadlock", faulty=None, what="a thread waits in a collective, the rank joins it")
def joined_thread(rank: int, world: int) -> None:
    group = dist.new_group([0, 1])
    if rank == 0:
        helper = threading.Thread(
            target=lambda: dist.all_reduce(torch.ones(1), group=group)  # <- here
        )
        helper.start()
        helper.join()  # <- here
    dist.barrier()  # <- here


@bug("F43", "mismatch|deadlock", ranks=3, faulty=(0,), what="only rank 0 shares its config")
def shared_by_one(rank: int, world: int) -> None:
    config = [{"lr": 0.1}]
    if rank == 0:
        dist.broadcast_object_list(config, src=0)  # <- here
    dist.all_reduce(torch.ones(1))  # <- here


@bug("F44", "mismatch|deadlock", ranks=3, faulty=(0,), what="gather called by its root only")
def gather_on_root(rank: int, world: int) -> None:
    if rank == 0:
        outputs = [torch.empty(1) for _ in range(world)]
        dist.gather(torch.ones(1), outputs, dst=0)  # <- here
    dist.barrier()  # <- here


@bug(
    "F45",
    "deadlock",
    ranks=4,
    faulty=(0, 1),
    what="two ranks are stuck while two others work on",
)
def partly_stuck(rank: int, world: int) -> None:
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    if rank < 2:
        dist.recv(torch.empty(1), src=1 - rank)  # <- here
        return
    for _ in range(5):
        dist.all_reduce(torch.ones(1), group=high)
    del low


@bug("F46", "deadlock", faulty=None, what="a pipeline expects a microbatch more than it gets")
def microbatches_differ(rank: int, world: int) -> None:
    if rank == 0:
        for _ in range(2):
            dist.send(torch.ones(4), dst=1)
    else:
        for _ in range(3):
            dist.recv(torch.empty(4), src=0)  # <- here


@bug("F47", "deadlock|unmatched-message", faulty=None, what="a send that nobody receives")
def nobody_receives(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), dst=1)  # <- here


@bug("F48", "mismatch", ranks=3, faulty=(1,), what="barrier meets all_gather_object")
def barrier_meets_objects(rank: int, world: int) -> None:
    if rank == 1:
        dist.barrier()  # <- here
    else:
        dist.all_gather_object([None] * world, "here")  # <- here


@bug("F49", "mismatch", ranks=3, faulty=(2,), what="clipping needs a norm on one rank only")
def clips_on_one(rank: int, world: int) -> None:
    norms = [0.5, 0.7, 3.0]
    for step in range(2):
        if norms[rank] > 1 and step == 1:
            dist.all_reduce(torch.tensor(norms[rank]), op=dist.ReduceOp.MAX)  # <- here
        dist.all_reduce(torch.ones(4))  # <- here
    dist.barrier()


@bug(
    "F50", "deadlock", ranks=3, faulty=range(3), what="a chain of sends with no first receiver"
)
def wrong_neighbour(rank: int, world: int) -> None:
    dist.send(torch.ones(1), dst=(rank + 1) % world)  # <- here
    dist.recv(torch.empty(1), src=(rank + 1) % world)


@bug("F51", "deadlock|mismatch", what="a barrier of one group meets that of another")
def nested_groups(rank: int, world: int) -> None:
    both = dist.new_group([0, 1])
    if rank == 0:
        dist.barrier(group=both)  # <- here
        dist.all_reduce(torch.ones(1))
    else:
        dist.all_reduce(torch.ones(1))  # <- here
        dist.barrier(group=both)


@bug("F52", "mismatch|deadlock", faulty=None, ranks=3, what="rank 0 waits for a key set after")
def key_set_after(rank: int, world: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["saved"])  # <- here
        dist.barrier()
    else:
        dist.barrier()  # <- here
        store.set("saved", "1")


@bug("F53", "deadlock", ranks=3, what="a wait for an irecv that is sent after a barrier")
def sent_after_barrier(rank: int, world: int) -> None:
    if rank == 1:
        work = dist.irecv(torch.empty(1), src=0)  # <- here
        assert work is not None
        work.wait()  # <- here
    dist.barrier()  # <- here
    if rank == 0:
        dist.send(torch.ones(1), dst=1)


@bug("F54", "mismatch", ranks=4, faulty=(1,), what="a helper called once more by one rank")
def helper_once_more(rank: int, world: int) -> None:
    def average(value: float) -> None:
        dist.all_reduce(torch.tensor(value))  # <- here

    average(1.0)
    if rank == 1:
        average(2.0)
    dist.broadcast(torch.ones(3), src=0)  # <- here


@bug("F55", "mismatch", ranks=3, faulty=(2,), what="early stopping that one rank decides alone")
def stops_alone(rank: int, world: int) -> None:
    losses = [[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 0.1, 1.0]][rank]
    for loss in losses:
        dist.all_reduce(torch.tensor(loss))  # <- here
        if loss < 0.5:
            break
    dist.barrier()  # <- here


@bug("F56", "deadlock|mismatch", ranks=4, what="row first here, column first there")
def rows_and_columns(rank: int, world: int) -> None:
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = [rows[rank // 2], columns[rank % 2]]
    if rank in (0, 3):
        mine.reverse()
    for group in mine:
        dist.all_reduce(torch.ones(1), group=group)  # <- here


@bug(
    "F57",
    "crossed-order",
    ranks=3,
    faulty=(1,),
    what="metrics reduced in the order of a set of strings",
)
def metrics_by_name(rank: int, world: int) -> None:
    metrics = {"loss": torch.ones(1), "accuracy": torch.zeros(1), "speed": torch.ones(1)}
    names = sorted(metrics, reverse=rank == 1)
    for name in names:
        dist.all_reduce(metrics[name])  # <- here


@bug(
    "F58", "deadlock", ranks=3, faulty=None, what="an exchange in which two wait for the third"
)
def third_has_gone_on(rank: int, world: int) -> None:
    if rank < 2:
        dist.recv(torch.empty(1), src=2)  # <- here
    dist.barrier()  # <- here


@bug("F59", "crossed-order|mismatch", ranks=2, what="parameters by name here, by age there")
def parameters_by_name(rank: int, world: int) -> None:
    model = torch.nn.ModuleDict({"b": torch.nn.Linear(2, 2), "a": torch.nn.Linear(2, 2)})
    named = list(model.named_parameters())
    if rank == 1:
        named.sort(key=lambda pair: pair[0])
    for _, parameter in named:
        dist.broadcast(parameter.data, src=0)  # <- here


@bug("F60", "mismatch", ranks=4, faulty=(3,), what="all_gather_object meets gather_object")
def other_object_call(rank: int, world: int) -> None:
    if rank == 3:
        dist.gather_object("x", None, dst=0)  # <- here
    else:
        dist.all_gather_object([None] * world, "x")  # <- here
