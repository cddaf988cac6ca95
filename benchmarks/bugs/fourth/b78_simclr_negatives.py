# ranks: 2
# kind: lost-result
# faulty: any
# lines: 22,28
# profile: gloo
# what: SimCLR negatives are gathered with all_gather, which cuts the graph: the projections of the other view get no gradient from the loss that uses them
import torch
import torch.distributed as dist


class Projector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

    def forward(self, a, b):
        return self.net(a), self.net(b)


def concat_all_gather(t):
    out = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(out, t)
    return torch.cat(out)


def nt_xent(za, zb, rank):
    keys = concat_all_gather(zb)
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
