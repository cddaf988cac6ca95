# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the gradient hook keeps the Work objects of the async all_reduces and all are waited for before the optimizer step
import torch
import torch.distributed as dist
from torch import nn


class OverlappedReducer:
    def __init__(self, module):
        self.pending = []
        self.world = dist.get_world_size()
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self._hook)

    def _hook(self, param):
        param.grad.div_(self.world)
        self.pending.append(dist.all_reduce(param.grad, async_op=True))

    def finish(self):
        while self.pending:
            self.pending.pop().wait()


def train(steps=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    reducer = OverlappedReducer(net)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        opt.zero_grad(set_to_none=False)
        net(torch.randn(8, 512, generator=gen)).square().mean().backward()
        reducer.finish()
        opt.step()
    return net


if __name__ == "__main__":
    dist.init_process_group("gloo")
    net = train()
    dist.barrier()
    norm = sum(p.double().norm() for p in net.parameters()).reshape(1)
    norms = [torch.empty_like(norm) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, norm.detach())
    print([n.item() for n in norms])
    dist.destroy_process_group()
