# ranks: 3
# kind: replica-drift
# faulty: 1
# lines: 28,42
# profile: gloo
# what: the scaler skips optimizer.step() if the own loss overflowed; the reduced gradients are the same everywhere, but only rank 1 skips
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class LossScaler:
    def __init__(self, scale=8.0, limit=100.0):
        self.scale_value, self.limit = scale, limit
        self.found_inf = False

    def scale(self, loss):
        scaled = loss * self.scale_value
        self.found_inf = bool(scaled.detach() > self.limit)
        return scaled

    def step(self, opt):
        if self.found_inf:
            return
        for group in opt.param_groups:
            for p in group["params"]:
                p.grad /= self.scale_value
        opt.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(5, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = LossScaler()
    for step in range(6):
        x = torch.ones(2, 5) * (200.0 if (rank, step) == (1, 3) else 0.5 + rank)
        opt.zero_grad()
        scaler.scale(model(x).pow(2).mean()).backward()
        scaler.step(opt)
    dist.barrier()
    dist.destroy_process_group()


main()
