# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: a (2,3) matrix is received into a flat (6,) buffer, empty tensors are reduced, and a scalar (0-dim) tensor is broadcast
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    dist.send(torch.arange(6.0).view(2, 3), 1)
else:
    flat = torch.empty(6)
    dist.recv(flat, 0)
    m = flat.view(2, 3)
    assert m[1, 2] == 5
s = torch.tensor(float(rank))
dist.broadcast(s, 1)
assert s.item() == 1
e = torch.empty(0)
dist.all_reduce(e)
dist.destroy_process_group()
