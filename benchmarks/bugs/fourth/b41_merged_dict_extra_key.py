# ranks: 2
# kind: crossed-order|deadlock|mismatch
# faulty: 0
# lines: 26,35
# profile: gloo
# what: rank 0 merges a grad_norm entry in front of its metrics: every reduction is off by one entry and its last one has no partner
import torch
import torch.distributed as dist


def tracked(rank, step):
    metrics = {"loss": torch.tensor(1.0 * step), "ppl": torch.tensor(3.0), "acc": torch.tensor(0.5)}
    if rank == 0:
        metrics = {"grad_norm": torch.tensor(7.0), **metrics}
    return metrics


class Tracker:
    def __init__(self):
        self.rows = []

    def log(self, metrics, step):
        row = {"step": step}
        for key, value in metrics.items():
            value = value.clone()
            dist.all_reduce(value)
            row[key] = value.item() / dist.get_world_size()
        self.rows.append(row)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tracker = Tracker()
    tracker.log(tracked(rank, step=1), 1)
    if rank == 0:
        print(tracker.rows)
    dist.barrier()
    dist.destroy_process_group()


main()
