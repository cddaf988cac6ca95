# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: ring attention sends and receives key and value in the same order
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
        reqs += [dist.irecv(next_k, self.recv_from)]
        reqs += [dist.irecv(next_v, self.recv_from)]
        for r in reqs:
            r.wait()
        return next_k, next_v


def ring_attention(q, k, v):
    comm = RingComm()
    out = torch.zeros_like(q)
    for step in range(comm.world):
        if step:
            k, v = comm.rotate(k, v)
        assert torch.equal(v, k + 100)
        out += torch.softmax(q @ k.t(), -1) @ v
    return out / comm.world


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
q, k = torch.randn(4, 8), torch.randn(4, 8)
out = ring_attention(q, k, k + 100)
dist.barrier()
dist.destroy_process_group()
