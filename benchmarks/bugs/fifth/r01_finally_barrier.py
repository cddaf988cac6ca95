# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the NaN flag is agreed first, so all ranks raise together and meet in the barrier of the finally block
import torch
import torch.distributed as dist
from torch import nn


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(7)
        self.rank = rank
        self.net = nn.Linear(6, 2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)

    def batch(self, step):
        x = torch.randn(4, 6)
        if self.rank == 1 and step == 2:
            x[0, 0] = float("nan")
        return x

    def step(self, i):
        loss = self.net(self.batch(i)).pow(2).mean()
        bad = torch.tensor([0.0 if torch.isfinite(loss) else 1.0])
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item() > 0:
            raise FloatingPointError(f"loss is not finite at step {i}")
        self.opt.zero_grad()
        loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.opt.step()

    def fit(self, steps):
        try:
            for i in range(steps):
                self.step(i)
        finally:
            dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    try:
        trainer.fit(5)
    except FloatingPointError as err:
        print(f"[{trainer.rank}] stopped: {err}")
    dist.destroy_process_group()
