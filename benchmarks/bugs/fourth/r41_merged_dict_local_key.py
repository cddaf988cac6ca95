# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: rank 0 has an additional local entry that is not reduced; the reduced ones come in one order on both ranks
import torch
import torch.distributed as dist


def tracked(rank, step):
    metrics = {"loss": torch.tensor(1.0 * step), "ppl": torch.tensor(3.0), "acc": torch.tensor(0.5)}
    if rank == 0:
        metrics = {"grad_norm": 7.0, **metrics}
    return metrics


class Tracker:
    def __init__(self):
        self.rows = []

    def log(self, metrics, step):
        row = {"step": step}
        for key, value in metrics.items():
            if not torch.is_tensor(value):
                row[key] = value
                continue
            value = value.clone()
            dist.all_reduce(value)
            row[key] = value.item() / dist.get_world_size()
        self.rows.append(row)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tracker = Tracker()
    tracker.log(tracked(rank, step=1), 1)
    assert tracker.rows[0]["ppl"] == 3.0
    dist.barrier()
    dist.destroy_process_group()


main()
