# ranks: 2
# kind: mismatch|deadlock
# faulty: 0
# lines: 32,35
# profile: gloo
# what: a length filter leaves three batches on rank 0 and four on rank 1 (loop in line 29); without join the last DDP backward of rank 1 meets the all_reduce of the epoch loss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Filtered(Dataset):
    def __init__(self, rank):
        lengths = [3, 9, 4, 5, 2] if rank == 0 else [3, 4, 9, 5, 2]
        if rank == 0:
            lengths[2] = 11
        self.items = [torch.full((6,), float(n)) for n in lengths if n < 8]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def train(model, loader, opt):
    running = torch.zeros(1)
    for batch in loader:
        opt.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        opt.step()
        running += loss.detach()
    dist.all_reduce(running)
    return running.item()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(6, 2))
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
train(model, DataLoader(Filtered(dist.get_rank()), batch_size=1), opt)
dist.destroy_process_group()
