# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the step counter is advanced on all ranks and only printed by rank 0, so both leave through SystemExit after step 4
import torch
import torch.distributed as dist


def get_rank():
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class ProgressBar:
    def __init__(self, max_steps):
        self.max_steps, self.n = max_steps, 0

    def update(self):
        self.n += 1
        if get_rank() == 0:
            print(f"{self.n}/{self.max_steps}")

    @property
    def finished(self):
        return self.n >= self.max_steps


def training_loop(bar, epochs, steps_per_epoch):
    w = torch.ones(5)
    for epoch in range(epochs):
        for i in range(steps_per_epoch):
            grad = w * (get_rank() + 1)
            dist.all_reduce(grad)
            w -= 0.05 * grad
            bar.update()
            if bar.finished:
                dist.destroy_process_group()
                raise SystemExit(0)


dist.init_process_group("gloo")
training_loop(ProgressBar(max_steps=4), epochs=2, steps_per_epoch=3)
