# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: all processes gather and then reduce; only the histogram is left to the main process
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
    everything = acc.gather(losses)
    if acc.is_main_process:
        print(everything.histc(bins=4))
    mean = acc.reduce(losses)
    assert torch.allclose(mean, everything.mean(0))
    return mean


acc = Accelerator()
losses = torch.tensor([0.5, 0.25, 1.0]) + acc.process_index
mean = validate(acc, losses)
acc.end_training()
