# ranks: 3
# kind: mismatch|deadlock|rank-failed
# faulty: 1
# lines: 31,21
# profile: gloo
# what: rank 1 meets a batch without "labels"; its except block saves an emergency checkpoint whose all_gather meets the gradient all_reduce of ranks 0 and 2
import torch
import torch.distributed as dist


def batches(rank, n):
    for i in range(n):
        b = {"x": torch.full((4,), float(rank + i)), "labels": torch.ones(4)}
        if rank == 1 and i == 3:
            b.pop("labels")
        yield b


def consolidate(shard):
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard)
    return torch.cat(parts)


def main():
    dist.init_process_group("gloo")
    rank, ws = dist.get_rank(), dist.get_world_size()
    w = torch.zeros(4)
    try:
        for batch in batches(rank, 6):
            err = w - batch["labels"]
            g = err * batch["x"]
            dist.all_reduce(g)
            w -= 0.01 * g / ws
    except KeyError as e:
        print(f"[rank {rank}] bad batch {e}, saving before exit")
        ckpt = consolidate(w)
        print(ckpt.shape)
    dist.destroy_process_group()


main()
