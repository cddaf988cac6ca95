# ranks: 3
# kind: mismatch
# faulty: any
# lines: 21
# profile: gloo
# what: on the way back combine() uses the send counts as output splits and input splits alike instead of swapping them, so what one rank sends is not what the peer expects
import torch
import torch.distributed as dist


def dispatch(tok, counts):
    recv = torch.empty_like(counts)
    dist.all_to_all_single(recv, counts)
    out = tok.new_empty(int(recv.sum()), tok.shape[1])
    dist.all_to_all_single(out, tok, recv.tolist(), counts.tolist())
    return out, recv


def combine(y, counts, recv):
    back = y.new_empty(int(counts.sum()), y.shape[1])
    dist.all_to_all_single(back, y[: int(counts.sum())], counts.tolist(), counts.tolist())
    return back


dist.init_process_group("gloo")
rank = dist.get_rank()
routing = torch.tensor([[1, 2, 1], [2, 1, 1], [2, 1, 1]])
counts = routing[rank].clone()
tok = torch.randn(int(counts.sum()), 4)
expert_in, recv = dispatch(tok, counts)
pad = torch.cat([expert_in * 2, torch.zeros(4, 4)])
combine(pad, counts, recv)
dist.destroy_process_group()
