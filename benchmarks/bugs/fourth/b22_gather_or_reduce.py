# ranks: 2
# kind: mismatch|deadlock
# faulty: any
# lines: 35,38,20,25
# profile: gloo
# what: the validation caller uses accelerator.gather on the main process and accelerator.reduce on the other, so an all_gather meets an all_reduce
import torch
import torch.distributed as dist


class Accelerator:
    def __init__(self):
        dist.init_process_group("gloo")
        self.process_index = dist.get_rank()
        self.num_processes = dist.get_world_size()
        self.is_main_process = self.process_index == 0

    def gather(self, t):
        out = [torch.empty_like(t) for _ in range(self.num_processes)]
        dist.all_gather(out, t)
        return torch.stack(out)

    def reduce(self, t, reduction="mean"):
        t = t.clone()
        dist.all_reduce(t)
        return t / self.num_processes if reduction == "mean" else t

    def end_training(self):
        dist.destroy_process_group()


def validate(acc, losses):
    if acc.is_main_process:
        # the main process wants the histogram as well
        everything = acc.gather(losses)
        print(everything.histc(bins=4))
        return everything.mean(0)
    return acc.reduce(losses)


acc = Accelerator()
losses = torch.tensor([0.5, 0.25, 1.0]) + acc.process_index
mean = validate(acc, losses)
acc.end_training()
