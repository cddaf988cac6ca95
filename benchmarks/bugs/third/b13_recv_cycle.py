# ranks: 4
# kind: deadlock
# faulty: 1,2,3
# lines: 22
# profile: gloo
# what: in the second round ranks 1,2,3 each receive before they send (1<-2<-3<-1), a cycle of receives
import torch
import torch.distributed as dist

# who I listen to in every round
LISTEN = [
    {0: None, 1: 0, 2: 1, 3: 2},
    {0: None, 1: 2, 2: 3, 3: 1},
]


def gossip_round(state, rank, table):
    listen = table[rank]
    speak_to = [r for r, l in table.items() if l == rank]
    if listen is not None:
        inc = torch.empty_like(state)
        dist.recv(inc, listen)
        state = (state + inc) / 2
    for d in speak_to:
        dist.send(state, d)
    return state


dist.init_process_group("gloo")
rank = dist.get_rank()
s = torch.tensor([float(rank)])
for table in LISTEN:
    s = gossip_round(s, rank, table)
dist.destroy_process_group()
