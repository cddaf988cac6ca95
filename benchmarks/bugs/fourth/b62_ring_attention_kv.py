# ranks: 3
# kind: crossed-order|message-race|backend-hazard
# faulty: any
# lines: 19,20
# profile: gloo
# what: ring attention sends key then value to the next rank and receives value then key from the previous one; both have one shape, so they change places
import torch
import torch.distributed as dist


class RingComm:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.send_to = (self.rank + 1) % self.world
        self.recv_from = (self.rank - 1) % self.world

    def rotate(self, k, v):
        next_k, next_v = torch.empty_like(k), torch.empty_like(v)
        reqs = [dist.isend(k, self.send_to), dist.isend(v, self.send_to)]
        reqs += [dist.irecv(next_v, self.recv_from)]
        reqs += [dist.irecv(next_k, self.recv_from)]
        for r in reqs:
            r.wait()
        return next_k, next_v


def ring_attention(q, k, v):
    comm = RingComm()
    out = torch.zeros_like(q)
    for step in range(comm.world):
        if step:
            k, v = comm.rotate(k, v)
        out += torch.softmax(q @ k.t(), -1) @ v
    return out / comm.world


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
q, k, v = (torch.randn(4, 8) for _ in range(3))
out = ring_attention(q, k, v)
print(out.shape)
dist.barrier()
dist.destroy_process_group()
