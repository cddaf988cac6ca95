# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the primary metric is chosen by an agreed flag, so both ranks reduce the metrics in the same order
import os

import torch
import torch.distributed as dist


class Evaluator:
    def __init__(self, loss, accuracy):
        self.loss = torch.tensor([loss])
        self.accuracy = torch.tensor([accuracy])

    def sync_loss(self):
        dist.all_reduce(self.loss)
        self.loss /= dist.get_world_size()

    def sync_accuracy(self):
        dist.all_reduce(self.accuracy)
        self.accuracy /= dist.get_world_size()

    def converged(self):
        flag = torch.tensor([int(self.loss.item() < 0.3)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def report(self):
        if self.converged():
            self.sync_accuracy()
            print(f"accuracy {self.accuracy.item():.2f}")
            self.sync_loss()
        else:
            self.sync_loss()
            print(f"loss {self.loss.item():.2f}")
            self.sync_accuracy()
        return self.loss.item(), self.accuracy.item()


def run():
    dist.init_process_group("gloo")
    local = {"0": (0.2, 0.95), "1": (0.4, 0.85)}[os.environ["RANK"]]
    result = Evaluator(*local).report()
    print("loss, accuracy =", tuple(round(v, 3) for v in result))
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
