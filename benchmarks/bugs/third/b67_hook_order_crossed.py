# ranks: 2
# kind: crossed-order
# faulty: any
# lines: 21,24
# profile: gloo
# what: gradient hooks all_reduce the two equally shaped towers in the order backward reaches them, and that order differs on rank 1; left's gradient is summed with right's
import torch
import torch.nn as nn
import torch.distributed as dist


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(3, 3, bias=False)
        self.right = nn.Linear(3, 3, bias=False)
        self.left.weight.register_post_accumulate_grad_hook(self.on_left)
        self.right.weight.register_post_accumulate_grad_hook(self.on_right)

    def on_left(self, p):
        dist.all_reduce(p.grad)

    def on_right(self, p):
        dist.all_reduce(p.grad)

    def forward(self, x, flip):
        first, second = (self.right, self.left) if flip else (self.left, self.right)
        return second(first(x).relu()).sum()


dist.init_process_group("gloo")
torch.manual_seed(0)
net = Towers()
x = torch.rand(2, 3)
# "augmentation": odd ranks see the views in the other order
net(x, flip=dist.get_rank() % 2 == 1).backward()
dist.barrier()
dist.destroy_process_group()
