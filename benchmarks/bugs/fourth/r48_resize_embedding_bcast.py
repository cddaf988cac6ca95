# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: rank 0 alone overwrites the new rows, but the table is broadcast from it before training goes on
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class LM(torch.nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = torch.nn.Embedding(vocab, dim)
        self.out = torch.nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.emb(ids))


def is_main():
    return dist.get_rank() == 0


@torch.no_grad()
def init_new_tokens(model, first):
    emb = model.module.emb.weight
    if is_main():
        emb[first:] = emb[:first].mean(0)
    dist.broadcast(emb.data, src=0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(LM(12, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    init_new_tokens(model, first=10)
    for step in range(4):
        ids = (torch.arange(6) + rank + step) % 12
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(ids), ids).backward()
        opt.step()
    w = model.module.emb.weight.detach()
    both = [torch.empty_like(w) for _ in range(2)]
    dist.all_gather(both, w)
    assert torch.equal(both[0], both[1])
    dist.barrier()
    dist.destroy_process_group()


main()
