# ranks: 3
# kind: in-flight-buffer
# faulty: 0
# lines: 15
# profile: gloo
# what: both irecvs write into one buffer; [torch.empty(4)]*2 repeats the same tensor
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
if rank == 0:
    bufs = [torch.empty(4)] * (ws - 1)
    ops = [dist.P2POp(dist.irecv, b, r + 1) for r, b in enumerate(bufs)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    total = torch.stack(bufs).sum(0)
else:
    ops = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), 0)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
dist.barrier()
dist.destroy_process_group()
