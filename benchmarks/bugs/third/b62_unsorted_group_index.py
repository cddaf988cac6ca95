# ranks: 4
# kind: rank-space|deadlock|unmatched-message
# faulty: any
# lines: 16,19
# profile: gloo
# what: the ring order [0,2,1,3] is passed to new_group, which sorts it; senders use order.index() as group_dst, receivers use global src, so 0 sends to 1 although 2 waits for it
import torch
import torch.distributed as dist

ORDER = [0, 2, 1, 3]


def pass_on(t, group, rank):
    pos = ORDER.index(rank)
    if pos > 0:
        dist.recv(t, src=ORDER[pos - 1], group=group)
    t += 1
    if pos + 1 < len(ORDER):
        dist.send(t, group=group, group_dst=pos + 1)


dist.init_process_group("gloo")
rank = dist.get_rank()
ring = dist.new_group(ORDER)
pass_on(torch.zeros(2), ring, rank)
dist.barrier()
dist.destroy_process_group()
