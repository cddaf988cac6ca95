# ranks: 3
# kind: rank-failed|invalid-call
# faulty: 2
# lines: 12,13
# profile: gloo
# what: rank 2 is no member of the group: its all_reduce(async_op=True) returns None and .wait() raises there; the others then wait in barrier for a dead rank
import torch
import torch.distributed as dist


def reduce_in(group, t):
    work = dist.all_reduce(t, group=group, async_op=True)
    work.wait()
    return t


dist.init_process_group("gloo")
world = list(range(dist.get_world_size()))
even = world[: len(world) // 2 * 2]
g = dist.new_group(even)
reduce_in(g, torch.ones(2))
dist.barrier()
dist.destroy_process_group()
