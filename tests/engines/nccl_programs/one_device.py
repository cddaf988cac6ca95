"""Every rank says that it uses the first GPU."""

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier(device_ids=[0])
dist.destroy_process_group()
