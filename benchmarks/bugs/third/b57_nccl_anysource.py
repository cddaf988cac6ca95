# ranks: 3
# kind: backend-hazard
# faulty: 0
# lines: 16
# profile: nccl
# what: recv without src is used (result slot chosen by sender, so it is no race on Gloo); NCCL does not support receive from any source
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
if rank == 0:
    slots = {}
    for _ in range(ws - 1):
        t = torch.empty(2)
        sender = dist.recv(t)
        slots[sender] = t
    ordered = [slots[r] for r in sorted(slots)]
else:
    dist.send(torch.full((2,), float(rank)), 0)
dist.barrier()
dist.destroy_process_group()
