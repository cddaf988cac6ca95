# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: one tensor is sent by isend to three peers at once (only read), the receives are posted late and in other order
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
w = torch.full((64,), float(rank))
if rank == 2:
    reqs = [dist.isend(w, p) for p in (3, 0, 1)]
    norm = w.norm()
    [q.wait() for q in reqs]
else:
    dist.recv(w, 2)
    assert w[0] == 2
dist.barrier()
dist.destroy_process_group()
