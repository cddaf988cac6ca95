# ranks: 2
# kind: unwaited-work|in-flight-buffer
# faulty: any
# lines: 19,37
# profile: gloo
# what: one variable holds the handle of the hook, so each all_reduce overwrites the last one and only the final handle is waited for; the optimizer reads all gradients
import torch
import torch.distributed as dist


class GradSync:
    def __init__(self, model):
        self.handle = None
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        p.grad /= dist.get_world_size()
        self.handle = dist.all_reduce(p.grad, async_op=True)

    def finish(self):
        self.handle.wait()
        self.handle = None


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
    sync = GradSync(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        opt.zero_grad()
        x = torch.full((2, 32), 0.1 * (dist.get_rank() + 1))
        model(x).pow(2).sum().backward()
        sync.finish()
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


main()
