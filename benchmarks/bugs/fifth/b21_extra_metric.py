# ranks: 3
# kind: mismatch
# faulty: 0
# lines: 14,19,25
# profile: gloo
# what: rank 0 alone records the gradient norm, so the stacked metrics have three elements there and two elsewhere in the all_reduce
import torch
import torch.distributed as dist


def train_metrics(step, rank):
    metrics = {"loss": 1.0 / (step + 1), "lr": 0.1}
    if rank == 0:
        metrics["grad_norm"] = 2.0
    return metrics


def agree_on_keys(metrics):
    return sorted(metrics)


def reduce_metrics(metrics):
    keys = agree_on_keys(metrics)
    stacked = torch.tensor([metrics.get(k, 0.0) for k in keys])
    dist.all_reduce(stacked)
    return dict(zip(keys, (stacked / dist.get_world_size()).tolist()))


def loop(steps):
    rank = dist.get_rank()
    for step in range(steps):
        averaged = reduce_metrics(train_metrics(step, rank))
        line = ", ".join(f"{k}={v:.3f}" for k, v in averaged.items())
        if not rank:
            print(f"step {step}: {line}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        loop(3)
    finally:
        dist.destroy_process_group()
