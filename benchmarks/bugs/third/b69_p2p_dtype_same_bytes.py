# ranks: 2
# kind: mismatch
# faulty: any
# lines: 13,20
# profile: gloo
# what: token ids are sent as int32 and received into float32: the byte counts agree so Gloo passes, the values are garbage
import torch
import torch.distributed as dist


def recv_like(shape, src, dtype=None):
    t = torch.empty(shape, dtype=dtype)
    dist.recv(t, src)
    return t


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    ids = torch.randint(0, 100, (2, 5), dtype=torch.int32)
    dist.send(ids, 1)
    dist.send(torch.rand(2, 5), 1)
else:
    ids = recv_like((2, 5), 0)
    emb = recv_like((2, 5), 0)
dist.barrier()
dist.destroy_process_group()
