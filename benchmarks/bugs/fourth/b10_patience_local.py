# ranks: 2
# kind: mismatch|deadlock
# faulty: 0
# lines: 26,46
# profile: gloo
# what: early stopping looks at the validation loss of the own shard (break in line 44): rank 0 stops after two epochs without progress while rank 1 goes on with the next epoch
import torch
import torch.distributed as dist


class EarlyStopping:
    def __init__(self, patience=2):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def step(self, value):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def train_one_epoch(w, rank):
    for i in range(3):
        grad = w * 0.1 + rank
        dist.all_reduce(grad)
        w -= 0.1 * grad / dist.get_world_size()


def validate(epoch, rank):
    # the shard of rank 0 is easy and saturates first
    curve = {0: [1.0, 0.5, 0.5, 0.5, 0.5, 0.5], 1: [1.2, 1.0, 0.8, 0.6, 0.5, 0.4]}
    return curve[rank][epoch]


dist.init_process_group("gloo")
rank = dist.get_rank()
w = torch.ones(7)
stopper = EarlyStopping()
for epoch in range(6):
    train_one_epoch(w, rank)
    if stopper.step(validate(epoch, rank)):
        print(f"rank {rank}: early stop in epoch {epoch}")
        break
best = [None, None]
dist.all_gather_object(best, stopper.best)
dist.destroy_process_group()
