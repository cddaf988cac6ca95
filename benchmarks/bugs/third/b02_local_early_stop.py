# ranks: 4
# kind: deadlock
# faulty: 2
# lines: 30
# profile: gloo
# what: rank 2 breaks out on its local loss after step 3 and finishes; the others wait in the step-4 all_reduce for a rank that has ended
import torch
import torch.distributed as dist


class EarlyStop:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def update(self, v):
        if v < self.best:
            self.best, self.bad = v, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


dist.init_process_group("gloo")
rank = dist.get_rank()
stopper = EarlyStop(2)
grad = torch.ones(8)
for step in range(10):
    loss = 1.0 / (step + 1) if rank != 2 else (1.0 / (step + 1) if step < 2 else 0.9)
    grad.fill_(loss)
    dist.all_reduce(grad, op=dist.ReduceOp.SUM)
    if stopper.update(loss):
        break
dist.destroy_process_group()
