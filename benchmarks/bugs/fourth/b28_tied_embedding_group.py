# ranks: 4
# kind: deadlock
# faulty: 0
# lines: 28,38,47
# profile: gloo
# what: the embedding group has the first and the last pipeline stage; only the last stage all_reduces the tied embedding gradient, the first one skips it as it "owns" the weight
import torch
import torch.distributed as dist


class PipelineState:
    def __init__(self):
        self.rank, self.pp = dist.get_rank(), dist.get_world_size()
        self.embed_group = dist.new_group([0, self.pp - 1])
        self.owns_embedding = self.rank == 0

    @property
    def is_first(self):
        return self.rank == 0

    @property
    def is_last(self):
        return self.rank == self.pp - 1


def allreduce_embedding_grads(state, grad):
    if (state.is_first or state.is_last) and not state.owns_embedding:
        dist.all_reduce(grad, group=state.embed_group)


def train_step(state, x):
    if not state.is_first:
        dist.recv(x, src=state.rank - 1)
    x = x + 1
    if not state.is_last:
        dist.send(x, dst=state.rank + 1)
    grad = torch.full((5, 2), float(state.rank))
    allreduce_embedding_grads(state, grad)
    return grad


dist.init_process_group("gloo")
state = PipelineState()
for step in range(2):
    grad = train_step(state, torch.zeros(3))
    norm = grad.norm()
    dist.all_reduce(norm)
dist.destroy_process_group()
