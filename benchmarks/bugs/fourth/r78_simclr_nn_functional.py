# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the negatives are gathered with torch.distributed.nn.functional.all_gather, whose backward brings the gradients of all ranks home
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_fn


class Projector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

    def forward(self, a, b):
        return self.net(a), self.net(b)


def concat_all_gather(t):
    return torch.cat(dist_fn.all_gather(t))


def nt_xent(za, zb, rank):
    keys = concat_all_gather(zb)
    assert keys.requires_grad
    logits = za @ keys.t()
    target = torch.arange(za.shape[0]) + rank * za.shape[0]
    return torch.nn.functional.cross_entropy(logits, target)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = Projector()
g = torch.Generator().manual_seed(rank)
for step in range(3):
    a = torch.randn(4, 6, generator=g)
    za, zb = model(a, a + 0.1 * torch.randn(4, 6, generator=g))
    model.zero_grad()
    nt_xent(za, zb, rank).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.data -= 0.1 * p.grad
dist.barrier()
dist.destroy_process_group()
