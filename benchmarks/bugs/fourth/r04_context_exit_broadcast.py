# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the upload error of rank 0 is swallowed in log, so both ranks leave the context after the same step and meet in the broadcast of __exit__
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
        if self.rank != 0:
            return
        try:
            if step == 3:
                raise ConnectionError("wandb: upload failed")
            print(step, round(value, 3))
        except ConnectionError as e:
            print("logging off:", e)

    def __exit__(self, exc_type, exc, tb):
        if exc_type is None:
            dist.broadcast(self.w, src=0)
        dist.destroy_process_group()
        return False


with TrainingRun(6) as run:
    for i in range(6):
        norm = run.step(torch.full((6,), 1.0 + run.rank))
        run.log(i, norm)
