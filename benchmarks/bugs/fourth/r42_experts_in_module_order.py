# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the gradients of the experts are all_reduced in the order of named_parameters, which is the same on all ranks
import torch
import torch.distributed as dist


class MoE(torch.nn.Module):
    def __init__(self, n=3, dim=4):
        super().__init__()
        self.experts = torch.nn.ModuleDict({f"e{i}": torch.nn.Linear(dim, dim, bias=False) for i in range(n)})
        self.used = {}

    def forward(self, x, choice):
        y = 0
        for row, e in zip(x, choice):
            expert = self.experts[f"e{e}"]
            self.used[f"e{e}"] = expert.weight
            y = y + expert(row).sum()
        return y


ROUTES = {0: [0, 1, 2], 1: [2, 0, 1], 2: [1, 0, 2]}


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    moe = MoE()
    for step in range(2):
        moe.zero_grad()
        moe(torch.arange(12.0).view(3, 4) * (rank + 1), ROUTES[rank]).backward()
        for name, weight in moe.named_parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= world
        with torch.no_grad():
            for p in moe.parameters():
                p -= 0.1 * p.grad
    assert len(moe.used) == 3
    dist.barrier()
    dist.destroy_process_group()


main()
