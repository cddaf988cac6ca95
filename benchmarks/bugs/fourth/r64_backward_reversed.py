# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: GPipe backward: gradients are sent and received last micro batch first on both stages
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
        outs = [a * 10 for a in acts]
        reqs = [dist.isend(outs[m], 0) for m in reversed(range(MICRO))]
        grads = None
    else:
        grads = [torch.empty(2, 2) for _ in range(MICRO)]
        reqs = [dist.irecv(grads[m], 1) for m in reversed(range(MICRO))]
    for r in reqs:
        r.wait()
    return grads


dist.init_process_group("gloo")
rank = dist.get_rank()
acts = forward_pass(rank)
grads = backward_pass(rank, acts)
if rank == 0:
    assert all(torch.equal(a * 10, g) for a, g in zip(acts, grads))
dist.barrier()
dist.destroy_process_group()
