# ranks: 2
# kind: crossed-order
# faulty: any
# lines: 13,19
# profile: gloo
# what: rank 0 reduces loss then accuracy, rank 1 accuracy then loss; both are scalars of one dtype, so the values silently mix
import torch
import torch.distributed as dist


def reduce_loss(x):
    t = torch.tensor([x], dtype=torch.float32)
    dist.all_reduce(t)
    return t.item()


def reduce_acc(x):
    t = torch.tensor([x], dtype=torch.float32)
    dist.all_reduce(t)
    return t.item()


REPORTERS = {"loss": reduce_loss, "acc": reduce_acc}


def report(metrics):
    return {k: REPORTERS[k](v) for k, v in metrics.items()}


dist.init_process_group("gloo")
rank = dist.get_rank()
metrics = {"loss": 0.7, "acc": 0.3}
if rank == 1:
    # this rank resumed from a log where the columns are alphabetical
    metrics = dict(sorted(metrics.items()))
report(metrics)
dist.barrier()
dist.destroy_process_group()
