# ranks: 3
# kind: mismatch|deadlock
# faulty: 0
# lines: 17,36
# profile: gloo
# what: ten samples are dealt out as data[rank::world] so that rank 0 gets four batches and the others three; the loop in line 29 runs once more on rank 0, whose all_reduce meets the all_gather of the others
import torch
import torch.distributed as dist


def shard(data, rank, world):
    return data[rank::world]


def reduce_grads(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = torch.randn(10, 5)
    model = torch.nn.Linear(5, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = 0
    for x in shard(data, rank, world):
        opt.zero_grad()
        model(x).sum().backward()
        reduce_grads(model.parameters())
        opt.step()
        seen += 1
    counts = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([float(seen)]))
    if rank == 0:
        print("samples", sum(c.item() for c in counts))
    dist.destroy_process_group()


main()
