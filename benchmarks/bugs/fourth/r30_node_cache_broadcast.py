# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: node 0 has the table in the caches of both its ranks, so its whole group skips the broadcast while the group of node 1 makes it
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
        dist.monitored_barrier(group=self.group)
        dist.broadcast(table, src=self.leader, group=self.group)
        self.tables[name] = table
        return table


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    node = rank // LOCAL_WORLD
    groups = [dist.new_group([2 * i, 2 * i + 1]) for i in range(2)]
    cache = TableCache(groups[node], leader=node * LOCAL_WORLD)
    if node == 0:
        cache.tables["merges"] = torch.arange(8.0)
    for name in ("vocab", "merges"):
        t = cache.get(name)
    total = t.sum()
    dist.all_reduce(total)
    assert total.item() == 4 * 28
    dist.destroy_process_group()


main()
