import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() < 2:
    store.set("best", str(dist.get_rank()))
dist.barrier()
if dist.get_rank() == 3:
    store.get("best")
