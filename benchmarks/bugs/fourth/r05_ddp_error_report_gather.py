# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: lengths are checked before the forward, every rank gathers its error text (or None) in every step, and all skip the step if anybody has one
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(torch.nn.Module):
    def __init__(self, max_len=8):
        super().__init__()
        self.max_len = max_len
        self.proj = torch.nn.Linear(4, 4)

    def check(self, x):
        if x.shape[1] > self.max_len:
            raise RuntimeError(f"sequence of {x.shape[1]} > {self.max_len}")

    def forward(self, x):
        return self.proj(x).mean()


def report(msg):
    msgs = [None] * dist.get_world_size()
    dist.all_gather_object(msgs, msg)
    return [m for m in msgs if m]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    bad = 0
    for step in range(4):
        x = torch.ones(2, 9 if rank == 1 and step == 2 else 8, 4)
        msg = None
        try:
            model.module.check(x)
        except RuntimeError as e:
            msg = f"rank {rank}: {e}"
        if report(msg):
            bad += 1
            continue
        opt.zero_grad()
        model(x).backward()
        opt.step()
    assert bad == 1
    dist.barrier()
    dist.destroy_process_group()


main()
