# ranks: 3
# kind: backend-hazard
# faulty: any
# lines: 18
# profile: nccl
# what: the very first communication on the default group is a batch_isend_irecv in which rank 2 does not take part; NCCL needs all ranks of the group in it when it is the first call
import torch
import torch.distributed as dist


def handshake(rank):
    if rank == 0:
        ops = [dist.P2POp(dist.isend, torch.ones(1), 1)]
    elif rank == 1:
        ops = [dist.P2POp(dist.irecv, torch.empty(1), 0)]
    else:
        return
    for w in dist.batch_isend_irecv(ops):
        w.wait()


dist.init_process_group("gloo")
handshake(dist.get_rank())
t = torch.ones(3)
dist.all_reduce(t)
dist.destroy_process_group()
