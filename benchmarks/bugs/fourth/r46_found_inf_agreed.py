# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the overflow flag is reduced with MAX, so that all ranks skip the same optimizer step
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class LossScaler:
    def __init__(self, scale=8.0, limit=100.0):
        self.scale_value, self.limit = scale, limit
        self.found_inf = torch.zeros(1)

    def scale(self, loss):
        scaled = loss * self.scale_value
        self.found_inf.fill_(float(scaled.detach() > self.limit))
        return scaled

    def step(self, opt):
        dist.all_reduce(self.found_inf, op=dist.ReduceOp.MAX)
        if self.found_inf.item():
            return False
        for group in opt.param_groups:
            for p in group["params"]:
                p.grad /= self.scale_value
        opt.step()
        return True


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(5, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = LossScaler()
    taken = 0
    for step in range(6):
        x = torch.ones(2, 5) * (200.0 if (rank, step) == (1, 3) else 0.5 + rank)
        opt.zero_grad()
        scaler.scale(model(x).pow(2).mean()).backward()
        taken += scaler.step(opt)
    counts = [None] * 3
    dist.all_gather_object(counts, taken)
    assert len(set(counts)) == 1 and taken < 6
    dist.barrier()
    dist.destroy_process_group()


main()
