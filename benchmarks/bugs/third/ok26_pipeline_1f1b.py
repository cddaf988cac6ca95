# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: 1F1B pipeline on 3 stages; the opposite transfers of neighbours are batched
import torch
import torch.distributed as dist

N = 4


def xchg(ops):
    for w in dist.batch_isend_irecv(ops) if ops else []:
        w.wait()


def recv(src):
    t = torch.empty(4)
    dist.recv(t, src)
    return t


def send_recv(t, peer):
    out = torch.empty(4)
    xchg([dist.P2POp(dist.isend, t, peer), dist.P2POp(dist.irecv, out, peer)])
    return out


dist.init_process_group("gloo")
r, ws = dist.get_rank(), dist.get_world_size()
first, last = r == 0, r == ws - 1
warm = min(N, ws - 1 - r)
fwd = bwd = 0
for _ in range(warm):
    x = torch.ones(4) if first else recv(r - 1)
    dist.send(x + 1, r + 1)
    fwd += 1
steady = N - warm
x = None
if steady:
    x = torch.ones(4) if first else recv(r - 1)
for i in range(steady):
    y = x + 1
    g = torch.ones(4) if last else send_recv(y, r + 1)
    fwd += 1
    more = i + 1 < steady
    if first:
        x = torch.ones(4) if more else None
    elif more:
        x = send_recv(g, r - 1)
    else:
        dist.send(g, r - 1)
    bwd += 1
for _ in range(warm):
    g = recv(r + 1)
    if not first:
        dist.send(g, r - 1)
    bwd += 1
assert fwd == bwd == N
dist.barrier()
dist.destroy_process_group()
