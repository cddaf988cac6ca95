# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: ragged gather done by padding to the global maximum, then trimming
import torch
import torch.distributed as dist


def gather_ragged(x):
    ws = dist.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ws)]
    dist.all_gather(sizes, torch.tensor([x.numel()]))
    m = int(max(sizes))
    pad = torch.zeros(m)
    pad[: x.numel()] = x
    flat = torch.empty(m * ws)
    dist.all_gather_into_tensor(flat, pad)
    return [c[: int(s)] for c, s in zip(flat.split(m), sizes)]


dist.init_process_group("gloo")
rank = dist.get_rank()
res = gather_ragged(torch.full((rank + 1,), float(rank)))
assert [len(r) for r in res] == [1, 2, 3, 4]
dist.destroy_process_group()
