# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the DistributedSampler gets one seed on all ranks, the seed that differs per rank is used for augmentation only
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Squares(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return i, torch.tensor([i / 32.0]), torch.tensor([(i / 32.0) ** 2])


def seed_everything(seed):
    seed = seed + dist.get_rank()
    random.seed(seed)
    torch.manual_seed(seed)
    return seed


def make_loader(dataset, seed):
    sampler = DistributedSampler(dataset, shuffle=True, seed=seed)
    return DataLoader(dataset, batch_size=4, sampler=sampler), sampler


def main(base_seed=2024):
    dist.init_process_group("gloo")
    local_seed = seed_everything(base_seed)
    loader, sampler = make_loader(Squares(), base_seed)
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for idx, x, y in loader:
            x = x + 0.01 * torch.randn_like(x)
            opt.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            opt.step()
            seen += idx.tolist()
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, seen)
        print(f"seed {local_seed} epoch {epoch}: {len(set(sum(every, [])))} of 32 samples seen")
    dist.destroy_process_group()


main()
