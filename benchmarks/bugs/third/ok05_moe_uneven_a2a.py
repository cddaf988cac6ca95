# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: uneven all_to_all_single with counts exchanged first, zero-sized splits, and the counts swapped on the way back
import torch
import torch.distributed as dist


def exchange(x, send, recv):
    out = x.new_empty(sum(recv), x.shape[1])
    dist.all_to_all_single(out, x, recv, send)
    return out


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
send = [[0, 3, 1], [2, 0, 0], [0, 0, 4]][rank]
recv_t = torch.empty(ws, dtype=torch.int64)
dist.all_to_all_single(recv_t, torch.tensor(send))
recv = recv_t.tolist()
x = torch.randn(sum(send), 2)
y = exchange(x, send, recv)
z = exchange(y, recv, send)
assert torch.equal(x, z)
dist.destroy_process_group()
