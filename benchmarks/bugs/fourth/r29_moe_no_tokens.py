# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: a rank without tokens still exchanges its zero counts and empty pieces in the expert group
import torch
import torch.distributed as dist


def route(rank, step):
    n = 4
    if rank == 3 and step == 1:
        n = 0
    return torch.full((n, 2), float(rank))


class ExpertLayer:
    def __init__(self, group):
        self.group = group
        self.n = dist.get_world_size(group)

    def dispatch(self, tokens):
        inp = [tokens.shape[0] // self.n] * self.n
        counts = torch.tensor(inp)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        out = tokens.new_empty(int(theirs.sum()), 2)
        dist.all_to_all_single(out, tokens, theirs.tolist(), inp, group=self.group)
        return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    layer = ExpertLayer(groups[rank // 2])
    rows = torch.zeros(1)
    for step in range(3):
        rows += layer.dispatch(route(rank, step)).shape[0]
        dist.barrier()
    dist.all_reduce(rows)
    assert rows.item() == 3 * 16 - 4
    dist.destroy_process_group()


main()
