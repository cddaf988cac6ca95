# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the ring step posts the receive of the value first as well, but tags tell keys from values
import os

import torch
import torch.distributed as dist
from torch.distributed import P2POp, batch_isend_irecv

ME, N = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
KEY_TAG, VALUE_TAG = 1, 2


def rotate(key, value):
    nxt, prev = (ME + 1) % N, (ME - 1) % N
    new_key, new_value = torch.empty_like(key), torch.empty_like(value)
    ops = [
        P2POp(dist.isend, key, nxt, tag=KEY_TAG),
        P2POp(dist.isend, value, nxt, tag=VALUE_TAG),
        P2POp(dist.irecv, new_value, prev, tag=VALUE_TAG),
        P2POp(dist.irecv, new_key, prev, tag=KEY_TAG),
    ]
    for work in batch_isend_irecv(ops):
        work.wait()
    return new_key, new_value


def ring_attention(query, key, value):
    scores, values = [], []
    for step in range(N):
        scores.append(query @ key.t())
        values.append(value)
        if step + 1 < N:
            key, value = rotate(key, value)
    return torch.cat(scores, -1).softmax(-1) @ torch.cat(values)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(21)
    q, k, v = (torch.randn(N, 4, 8) for _ in range(3))
    out = ring_attention(q[ME], k[ME], v[ME])
    full = (q[ME] @ k.flatten(0, 1).t()).softmax(-1) @ v.flatten(0, 1)
    print(f"rank {ME}: error {(out - full).abs().max().item():.2e}")
    dist.barrier()
    dist.destroy_process_group()
