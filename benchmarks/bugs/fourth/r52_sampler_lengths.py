# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the corrupt sample is dropped on all ranks as its index is agreed on with all_gather_object before the samplers are made
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def read_samples(rank):
    samples = [torch.tensor([float(i), 1.0]) for i in range(16)]
    if rank == 1:
        samples[5][0] = float("nan")
    bad = {i for i, s in enumerate(samples) if not torch.isfinite(s).all()}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, bad)
    bad = set().union(*everyone)
    return [s for i, s in enumerate(samples) if i not in bad]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = read_samples(rank)
    assert len(data) == 15
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
