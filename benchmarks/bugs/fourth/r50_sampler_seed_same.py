# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the random state of the ranks differs on purpose (augmentation), the seed of the sampler is one and the same
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
    dataset = TensorDataset(torch.arange(16.0).view(16, 1))
    loader, sampler = make_loader(dataset, seed=42)
    model = DDP(torch.nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = torch.zeros(16)
        for (x,) in loader:
            seen[x.long().view(-1)] += 1
            opt.zero_grad()
            model(x + 0.01 * torch.randn_like(x)).mean().backward()
            opt.step()
        dist.all_reduce(seen)
        assert torch.equal(seen, torch.ones(16))
    dist.barrier()
    dist.destroy_process_group()


main()
