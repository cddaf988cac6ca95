# ranks: 3
# kind: unmatched-message
# faulty: 1
# lines: 18
# profile: gloo
# what: rank 1 sends the "done" message also to rank 2, who returns after its last item and never receives it
import torch
import torch.distributed as dist

STOP = -1


def farm_out(items, workers):
    reqs = []
    for i, it in enumerate(items):
        reqs.append(dist.isend(torch.tensor([it]), workers[i % len(workers)], tag=7))
    for w in workers:
        reqs.append(dist.isend(torch.tensor([STOP]), w, tag=7))
    return reqs


def work(expected):
    t = torch.zeros(1, dtype=torch.int64)
    for _ in range(expected):
        dist.recv(t, 1, tag=7)
        if t.item() == STOP:
            return


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    reqs = farm_out([5, 6, 7, 8], [0, 2])
    for r in reqs[:-1]:
        r.wait()
elif rank == 0:
    work(100)
else:
    work(2)
dist.destroy_process_group()
