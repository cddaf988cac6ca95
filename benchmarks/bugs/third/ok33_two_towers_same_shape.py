# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the same two reductions of equal shape from one helper line, in sorted name order on both ranks although the dicts are ordered differently
import torch
import torch.distributed as dist


def reduce_all(d):
    for k in sorted(d):
        dist.all_reduce(d[k])


dist.init_process_group("gloo")
rank = dist.get_rank()
items = [("left", torch.ones(3)), ("right", torch.full((3,), 2.0))]
d = dict(items if rank == 0 else items[::-1])
for _ in range(2):
    reduce_all(d)
assert d["left"][0] == 4 and d["right"][0] == 8
dist.destroy_process_group()
