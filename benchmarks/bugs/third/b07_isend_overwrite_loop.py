# ranks: 2
# kind: in-flight-buffer
# faulty: 0
# lines: 17,18
# profile: gloo
# what: the one send buffer is refilled for the next chunk while the previous isend has not been waited for
import torch
import torch.distributed as dist

CHUNKS = 5


def producer(dst):
    buf = torch.empty(1024)
    pending = []
    for i in range(CHUNKS):
        buf.fill_(i)
        pending.append(dist.isend(buf, dst))
    for w in pending:
        w.wait()


def consumer(src):
    got = []
    for i in range(CHUNKS):
        t = torch.empty(1024)
        dist.recv(t, src)
        got.append(t[0].item())
    return got


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    producer(1)
else:
    consumer(0)
dist.destroy_process_group()
