# ranks: 2
# kind: crossed-order
# faulty: any
# lines: 16,36
# profile: gloo
# what: rank 0 puts the learning rate into its metrics first and rank 1 last, so reduce_dict averages lr with loss
import torch
import torch.distributed as dist


def reduce_dict(metrics):
    world = dist.get_world_size()
    out = {}
    for name, value in metrics.items():
        t = torch.tensor(value)
        dist.all_reduce(t)
        out[name] = t.item() / world
    return out


def collect(rank, step):
    metrics = {}
    if rank == 0:
        metrics["lr"] = 0.1
    metrics["loss"] = 2.0 / (step + 1)
    metrics["acc"] = 0.25 * step
    if "lr" not in metrics:
        metrics["lr"] = 0.1
    return metrics


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(3):
        mean = reduce_dict(collect(rank, step))
        if rank == 0:
            print(step, {k: round(v, 4) for k, v in mean.items()})
    dist.barrier()
    dist.destroy_process_group()


main()
