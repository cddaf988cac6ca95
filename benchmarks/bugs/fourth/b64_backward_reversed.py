# ranks: 2
# kind: crossed-order|message-race|backend-hazard
# faulty: any
# lines: 28,32
# profile: gloo
# what: GPipe backward: stage 1 sends the gradients of the micro batches last first, stage 0 has posted its receives first to last
import torch
import torch.distributed as dist

MICRO = 3


def forward_pass(rank):
    acts = []
    for m in range(MICRO):
        if rank == 0:
            h = torch.full((2, 2), float(m))
            dist.send(h, 1)
        else:
            h = torch.empty(2, 2)
            dist.recv(h, 0)
        acts.append(h)
    return acts


def backward_pass(rank, acts):
    if rank == 1:
        reqs = [dist.isend(acts[m] * 10, 0) for m in reversed(range(MICRO))]
        grads = None
    else:
        grads = [torch.empty(2, 2) for _ in range(MICRO)]
        reqs = [dist.irecv(grads[m], 1) for m in range(MICRO)]
    for r in reqs:
        r.wait()
    return grads


dist.init_process_group("gloo")
rank = dist.get_rank()
acts = forward_pass(rank)
grads = backward_pass(rank, acts)
if rank == 0:
    print([(a[0, 0].item(), g[0, 0].item()) for a, g in zip(acts, grads)])
dist.barrier()
dist.destroy_process_group()
