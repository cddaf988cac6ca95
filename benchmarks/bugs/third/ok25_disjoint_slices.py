# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: isend/irecv on slices of one tensor while the other, disjoint part of it is written; the in-flight send buffer is only read
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
buf = torch.zeros(16)
if rank == 0:
    buf[:8] = 5
    w = dist.isend(buf[:8], 1)
    buf[8:].fill_(1)
    peek = buf[:8].sum().item()
    w.wait()
    buf.zero_()
else:
    w = dist.irecv(buf[8:], 0)
    buf[:8].fill_(2)
    w.wait()
    assert buf.sum() == 16 + 40
dist.barrier()
dist.destroy_process_group()
