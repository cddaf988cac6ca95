# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: all ranks call test(), the global zero prints the answer
import torch
import torch.distributed as dist


class Trainer:
    def __init__(self, max_steps):
        self.max_steps = max_steps

    @property
    def is_global_zero(self):
        return dist.get_rank() == 0

    def fit(self, module):
        for step in range(self.max_steps):
            g = module.grad(step)
            dist.all_reduce(g)
            module.apply(g / dist.get_world_size())

    def test(self, module):
        loss = module.loss()
        dist.all_reduce(loss)
        return {"test_loss": loss.item() / dist.get_world_size()}


class LitToy:
    def __init__(self):
        self.w = torch.zeros(3)

    def grad(self, step):
        return self.w - torch.full((3,), float(step + dist.get_rank()))

    def apply(self, g):
        self.w -= 0.3 * g

    def loss(self):
        return self.w.pow(2).sum()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer, module = Trainer(max_steps=4), LitToy()
    trainer.fit(module)
    result = trainer.test(module)
    if trainer.is_global_zero:
        print(result)
    dist.destroy_process_group()
