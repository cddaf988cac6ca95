# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: each bucket keeps its work and waits for it in unpack
import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, params):
        self.params = params
        self.flat = torch.zeros(sum(p.numel() for p in params))
        self.work = None

    def pack(self):
        torch.cat([p.grad.flatten() for p in self.params], out=self.flat)

    def reduce(self):
        self.work = dist.all_reduce(self.flat, async_op=True)

    def unpack(self):
        self.work.wait()
        self.work = None
        i = 0
        for p in self.params:
            p.grad.copy_(self.flat[i:i + p.numel()].view_as(p))
            i += p.numel()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
buckets = [Bucket(list(m.parameters())) for m in model]
for step in range(3):
    opt.zero_grad()
    model(torch.full((2, 64), float(dist.get_rank()))).sum().backward()
    for b in buckets:
        b.pack()
        b.reduce()
    for b in buckets:
        b.unpack()
    opt.step()
dist.barrier()
dist.destroy_process_group()
