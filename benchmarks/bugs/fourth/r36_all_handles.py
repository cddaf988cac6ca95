# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the hook appends every handle and finish waits for all of them, last first, and clears the list
import torch
import torch.distributed as dist


class GradSync:
    def __init__(self, model):
        self.handles = []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        p.grad /= dist.get_world_size()
        self.handles.append(dist.all_reduce(p.grad, async_op=True))

    def finish(self):
        for handle in reversed(self.handles):
            handle.wait()
        self.handles.clear()


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
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    both = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(both, flat)
    assert torch.equal(both[0], both[1])
    dist.destroy_process_group()


main()
