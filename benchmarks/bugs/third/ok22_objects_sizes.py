# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: object collectives with objects of different type and size per rank, and a broadcast list whose content decides the loop count
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
objs = [None] * ws
dist.all_gather_object(objs, {"r": rank, "pad": "x" * 100 * rank})
assert [o["r"] for o in objs] == [0, 1, 2]
steps = [rank + 2, "plan"]
dist.broadcast_object_list(steps, src=1)
t = torch.zeros(1)
for _ in range(steps[0]):
    dist.all_reduce(t)
got = [None] * ws if rank == 2 else None
dist.gather_object(("n", rank), got, dst=2)
box = [None]
dist.scatter_object_list(box, ["a", 2, [3]] if rank == 0 else None, src=0)
dist.destroy_process_group()
