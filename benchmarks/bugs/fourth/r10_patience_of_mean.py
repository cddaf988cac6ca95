# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: early stopping looks at the validation loss averaged over the ranks, so both stop in the same epoch
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
    curve = {0: [1.0, 0.5, 0.5, 0.5, 0.5, 0.5], 1: [1.2, 1.0, 1.0, 1.0, 0.5, 0.4]}
    t = torch.tensor(curve[rank][epoch], dtype=torch.float64)
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


dist.init_process_group("gloo")
rank = dist.get_rank()
w = torch.ones(7)
stopper = EarlyStopping()
for epoch in range(6):
    train_one_epoch(w, rank)
    if stopper.step(validate(epoch, rank)):
        break
assert epoch == 3
best = [None, None]
dist.all_gather_object(best, stopper.best)
assert best[0] == best[1]
dist.destroy_process_group()
