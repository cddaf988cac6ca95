# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: set_epoch is called on all ranks, only the message belongs to rank 0
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.tensor([i / 12.0]), torch.tensor([(i / 12.0) ** 2])


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        self.data = Squares()
        self.sampler = DistributedSampler(self.data, shuffle=True, seed=3)
        self.loader = DataLoader(self.data, batch_size=3, sampler=self.sampler)
        torch.manual_seed(0)
        self.model = DDP(torch.nn.Linear(1, 1))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, epochs):
        for epoch in range(epochs):
            if self.rank == 0:
                print("epoch", epoch)
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self.opt.zero_grad()
                (self.model(x) - y).pow(2).mean().backward()
                self.opt.step()


dist.init_process_group("gloo")
Trainer().fit(3)
dist.barrier()
dist.destroy_process_group()
