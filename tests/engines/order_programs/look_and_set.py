import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() < 2 and not store.check(["leader"]):
    store.set("leader", str(dist.get_rank()))
