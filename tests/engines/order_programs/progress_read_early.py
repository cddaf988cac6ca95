import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
for step in range(4):
    store.set(f"step/{rank}", str(step))
resume = torch.tensor(min(int(store.get(f"step/{other}")) for other in range(world)))
dist.broadcast(resume, src=0)
dist.destroy_process_group()
