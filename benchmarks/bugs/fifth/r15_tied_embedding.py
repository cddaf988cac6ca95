# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: both end stages have tied embeddings and join the all_reduce of the embedding group, the middle stage does not
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn


def build_args():
    return SimpleNamespace(vocab=12, hidden=4, untie_output=False)


class Stage(nn.Module):
    def __init__(self, args, index, last):
        super().__init__()
        self.first, self.last = index == 0, index == last
        self.body = nn.Linear(args.hidden, args.hidden)
        self.embedding = nn.Embedding(args.vocab, args.hidden) if self.first or self.last else None
        self.tied = self.first or (self.last and not args.untie_output)

    def forward(self, x):
        h = self.embedding(x) if self.first else x.float().unsqueeze(-1).expand(-1, 4)
        h = self.body(h)
        return h @ self.embedding.weight.t() if self.last else h


def allreduce_embedding_grads(stage, group):
    if stage.tied:
        dist.all_reduce(stage.embedding.weight.grad, group=group)


def main():
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    embedding_group = dist.new_group([0, last])
    args = build_args()
    stage = Stage(args, rank, last)
    opt = torch.optim.SGD(stage.parameters(), lr=0.1)
    for _ in range(2):
        opt.zero_grad()
        stage(torch.arange(6)).sum().backward()
        allreduce_embedding_grads(stage, embedding_group)
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


main()
