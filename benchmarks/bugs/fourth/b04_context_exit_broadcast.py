# ranks: 2
# kind: mismatch|deadlock|rank-failed
# faulty: 0
# lines: 29,34
# profile: gloo
# what: rank 0 raises in the logger inside the training context; __exit__ broadcasts the final weights while rank 1 waits in the next all_reduce
import torch
import torch.distributed as dist


class TrainingRun:
    def __init__(self, dim):
        self.w = torch.zeros(dim)

    def __enter__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        return self

    def step(self, x):
        g = (self.w - x).clone()
        dist.all_reduce(g)
        self.w -= 0.1 * g
        return g.norm().item()

    def log(self, step, value):
        if self.rank == 0:
            if step == 3:
                raise ConnectionError("wandb: upload failed")
            print(step, round(value, 3))

    def __exit__(self, exc_type, exc, tb):
        # everybody leaves with the weights of rank 0
        dist.broadcast(self.w, src=0)
        dist.destroy_process_group()
        return False


with TrainingRun(6) as run:
    for i in range(6):
        norm = run.step(torch.full((6,), 1.0 + run.rank))
        run.log(i, norm)
