# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the insertion order differs, but reduce_dict goes through the sorted keys
import torch
import torch.distributed as dist


def reduce_dict(metrics):
    world = dist.get_world_size()
    out = {}
    for name in sorted(metrics):
        t = torch.tensor(metrics[name])
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
        assert abs(mean["lr"] - 0.1) < 1e-6
        assert abs(mean["loss"] - 2.0 / (step + 1)) < 1e-6
    dist.barrier()
    dist.destroy_process_group()


main()
