# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: root and others call the same broadcast/scatter from different lines with different python arguments
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
if rank == 1:
    cfg = torch.tensor([3.0, 4.0])
    dist.broadcast(cfg, src=1)
    parts = list(torch.arange(6.0).split(2))
    mine = torch.empty(2)
    dist.scatter(mine, parts, src=1)
else:
    cfg = torch.empty(2)
    dist.broadcast(cfg, 1, async_op=True).wait()
    mine = torch.empty(2)
    dist.scatter(mine, src=1)
assert cfg.tolist() == [3.0, 4.0] and mine[0] == 2 * rank
if rank == 2:
    out = [torch.empty(2) for _ in range(ws)]
    dist.gather(mine, out, dst=2)
else:
    dist.gather(mine, dst=2)
dist.destroy_process_group()
