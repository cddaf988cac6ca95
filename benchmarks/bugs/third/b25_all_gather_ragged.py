# ranks: 3
# kind: mismatch
# faulty: 2
# lines: 25
# profile: gloo
# what: in the last batch rank 2 has 2 rows where the others have 4; all_gather needs equal shapes
import torch
import torch.distributed as dist


def shard(n, rank, ws):
    per = -(-n // ws)
    return torch.arange(rank * per, min(n, (rank + 1) * per))


def predict(idx):
    return torch.stack([idx.float(), idx.float() ** 2], dim=1)


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
for n in (12, 9, 10):
    p = predict(shard(n, rank, ws))
    out = [torch.empty_like(p) for _ in range(ws)]
    dist.all_gather(out, p)
dist.destroy_process_group()
