# ranks: 4
# kind: deadlock
# faulty: 1
# lines: 22,38,40
# profile: gloo
# what: rank 1 has the tokenizer table in its own cache from the warm-up and skips the broadcast in its node group, where rank 0 waits for it
import torch
import torch.distributed as dist

LOCAL_WORLD = 2


class TableCache:
    def __init__(self, group, leader):
        self.group, self.leader = group, leader
        self.tables = {}

    def get(self, name):
        if name in self.tables:
            return self.tables[name]
        table = torch.arange(8.0) if dist.get_rank() == self.leader else torch.empty(8)
        dist.barrier(group=self.group)
        dist.broadcast(table, src=self.leader, group=self.group)
        self.tables[name] = table
        return table


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    node = rank // LOCAL_WORLD
    groups = [dist.new_group([2 * i, 2 * i + 1]) for i in range(2)]
    cache = TableCache(groups[node], leader=node * LOCAL_WORLD)
    if rank == 1:
        # this one was used for the warm-up run
        cache.tables["merges"] = torch.arange(8.0)
    for name in ("vocab", "merges"):
        t = cache.get(name)
    total = t.sum()
    dist.all_reduce(total)
    dist.destroy_process_group()


main()
