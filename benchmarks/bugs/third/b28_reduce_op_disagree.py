# ranks: 3
# kind: mismatch
# faulty: 1
# lines: 16
# profile: gloo
# what: rank 1 falls back to MAX because its metric has no weight; the same all_reduce runs with SUM on 0,2 and MAX on 1
import torch
import torch.distributed as dist

OPS = {"mean": dist.ReduceOp.SUM, "worst": dist.ReduceOp.MAX}


def aggregate(metric):
    how = "mean" if metric.get("weight") else "worst"
    t = torch.tensor([metric["value"]])
    dist.all_reduce(t, op=OPS[how])
    return t.item()


dist.init_process_group("gloo")
rank = dist.get_rank()
seen = 4 - 4 * (rank == 1)
aggregate({"value": 1.0 + rank, "weight": seen})
dist.destroy_process_group()
