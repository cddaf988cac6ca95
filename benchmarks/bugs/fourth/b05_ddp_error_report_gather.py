# ranks: 2
# kind: mismatch|deadlock|rank-failed
# faulty: 1
# lines: 20,26
# profile: gloo
# what: the model of rank 1 raises for a sequence that is too long; its handler gathers the error texts while rank 0 is in the gradient all_reduce of DDP's backward
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(torch.nn.Module):
    def __init__(self, max_len=8):
        super().__init__()
        self.max_len = max_len
        self.proj = torch.nn.Linear(4, 4)

    def forward(self, x):
        if x.shape[1] > self.max_len:
            raise RuntimeError(f"sequence of {x.shape[1]} > {self.max_len}")
        return self.proj(x).mean()


def report(msg):
    msgs = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(msg, msgs, dst=0)
    return msgs


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        length = 9 if rank == 1 and step == 2 else 8
        try:
            loss = model(torch.ones(2, length, 4))
        except RuntimeError as e:
            report(f"rank {rank}: {e}")
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


main()
