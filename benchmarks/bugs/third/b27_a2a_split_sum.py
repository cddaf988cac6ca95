# ranks: 4
# kind: invalid-call
# faulty: 1
# lines: 28
# profile: gloo
# what: capacity dropping on rank 1 shortens the token tensor but not the input splits, so the splits do not sum to dim 0
import torch
import torch.distributed as dist

CAP = 8


def route(n_tok, ws):
    base = [n_tok // ws] * ws
    base[-1] += n_tok - sum(base)
    return base


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
n = 8 if rank != 1 else 10
splits = route(n, ws)
tok = torch.randn(n, 2)[:CAP]
send = torch.tensor(splits)
recv = torch.empty_like(send)
dist.all_to_all_single(recv, send)
out = torch.empty(int(recv.sum()), 2)
dist.all_to_all_single(out, tok, recv.tolist(), splits)
dist.destroy_process_group()
