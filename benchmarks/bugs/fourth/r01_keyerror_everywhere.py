# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the batch without labels is at the same place of every rank's stream, so all ranks raise in one step and the handler's all_gather is met by everybody
import torch
import torch.distributed as dist


def batches(rank, n):
    for i in range(n):
        b = {"x": torch.full((4,), float(rank + i)), "labels": torch.ones(4)}
        if i == 3:
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
    ckpt = None
    try:
        for batch in batches(rank, 6):
            err = w - batch["labels"]
            g = err * batch["x"]
            dist.all_reduce(g)
            w -= 0.01 * g / ws
    except KeyError as e:
        print(f"[rank {rank}] bad batch {e}, saving before exit")
        ckpt = consolidate(w)
    assert ckpt is not None and torch.equal(ckpt[:4], ckpt[4:8])
    dist.destroy_process_group()


main()
