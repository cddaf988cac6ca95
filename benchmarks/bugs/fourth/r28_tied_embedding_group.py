# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: first and last pipeline stage both all_reduce the gradient of the tied embedding, the middle stages do not and are no members
import torch
import torch.distributed as dist


class PipelineState:
    def __init__(self):
        self.rank, self.pp = dist.get_rank(), dist.get_world_size()
        self.embed_group = dist.new_group([0, self.pp - 1])

    @property
    def is_first(self):
        return self.rank == 0

    @property
    def is_last(self):
        return self.rank == self.pp - 1


def allreduce_embedding_grads(state, grad):
    if state.is_first or state.is_last:
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
    assert grad[0, 0].item() == (3 if state.rank in (0, 3) else state.rank)
    norm = grad.norm()
    dist.all_reduce(norm)
dist.destroy_process_group()
