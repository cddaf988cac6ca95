# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: double-buffered isend; a buffer is refilled only after its previous send was waited for
import torch
import torch.distributed as dist

N = 7
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    bufs = [torch.empty(512), torch.empty(512)]
    reqs = [None, None]
    for i in range(N):
        k = i & 1
        if reqs[k] is not None:
            reqs[k].wait()
        bufs[k].fill_(i)
        reqs[k] = dist.isend(bufs[k], 1)
    for r in reqs:
        r.wait()
else:
    t = torch.empty(512)
    for i in range(N):
        dist.irecv(t, 0).wait()
        assert t[0] == i
dist.destroy_process_group()
