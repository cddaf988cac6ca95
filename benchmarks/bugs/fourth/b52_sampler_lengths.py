# ranks: 2
# kind: replica-drift
# faulty: 1
# lines: 25,32
# profile: gloo
# what: rank 1 drops a corrupt sample from its copy of the dataset: the samplers deal out 15 and 16 samples with other permutations, and just the same number of batches hides it
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def read_samples(rank):
    samples = [torch.tensor([float(i), 1.0]) for i in range(16)]
    if rank == 1:
        samples[5][0] = float("nan")
    return [s for s in samples if torch.isfinite(s).all()]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = read_samples(rank)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(2, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x in loader:
            opt.zero_grad()
            model(x).mean().backward()
            opt.step()
    dist.barrier()
    dist.destroy_process_group()


main()
