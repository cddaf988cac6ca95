# ranks: 2
# kind: in-flight-buffer
# faulty: 1
# lines: 17,24
# profile: gloo
# what: rank 1 grows its receive scratch with resize_ while an irecv into it is pending
import torch
import torch.distributed as dist


class Scratch:
    def __init__(self, n):
        self.t = torch.zeros(n)

    def need(self, n):
        if self.t.numel() < n:
            self.t.resize_(n)
        return self.t[:n]


dist.init_process_group("gloo")
if dist.get_rank() == 1:
    s = Scratch(4)
    w1 = dist.irecv(s.need(4), 0, tag=1)
    w2 = dist.irecv(s.need(4096)[4:], 0, tag=2)
    w1.wait()
    w2.wait()
else:
    dist.send(torch.ones(4), 1, tag=1)
    dist.send(torch.ones(4092), 1, tag=2)
dist.barrier()
dist.destroy_process_group()
