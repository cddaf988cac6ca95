# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the shards are cut to the length that all ranks have (drop_last), so everybody makes three steps
import torch
import torch.distributed as dist


def shard(data, rank, world):
    even = len(data) // world * world
    return data[:even][rank::world]


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
    assert sum(c.item() for c in counts) == 9
    dist.destroy_process_group()


main()
