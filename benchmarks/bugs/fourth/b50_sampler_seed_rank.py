# ranks: 2
# kind: replica-drift
# faulty: any
# lines: 15
# profile: gloo
# what: the DistributedSampler gets a seed that depends on the rank, so the ranks shuffle differently and draw overlapping shards
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_loader(dataset, seed):
    sampler = DistributedSampler(dataset, shuffle=True, seed=seed)
    return DataLoader(dataset, batch_size=2, sampler=sampler), sampler


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(42 + rank)
    seed = torch.initial_seed()
    dataset = TensorDataset(torch.arange(16.0).view(16, 1))
    loader, sampler = make_loader(dataset, seed)
    model = DDP(torch.nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            opt.zero_grad()
            model(x).mean().backward()
            opt.step()
    dist.barrier()
    dist.destroy_process_group()


main()
