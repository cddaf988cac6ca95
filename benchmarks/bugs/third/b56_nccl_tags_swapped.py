# ranks: 2
# kind: backend-hazard
# faulty: any
# lines: 14,15,21,22
# profile: nccl
# what: two same-sized messages are told apart only by tag and received in the other order; NCCL ignores tags, so hidden and mask would be exchanged
import torch
import torch.distributed as dist

HIDDEN, MASK = 11, 12
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    works = [
        dist.isend(torch.full((6,), 0.5), 1, tag=HIDDEN),
        dist.isend(torch.ones(6), 1, tag=MASK),
    ]
    for w in works:
        w.wait()
else:
    mask, hidden = torch.empty(6), torch.empty(6)
    dist.recv(mask, 0, tag=MASK)
    dist.recv(hidden, 0, tag=HIDDEN)
    assert mask.sum() == 6
dist.barrier()
dist.destroy_process_group()
