# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the out-of-memory flag is reduced with MAX outside of the handler, so both ranks skip the batch together and both enter the barrier
import gc

import torch
import torch.distributed as dist

LIMIT = 96


class FakeOutOfMemory(RuntimeError):
    pass


def forward(tokens):
    if tokens.numel() > LIMIT:
        raise FakeOutOfMemory("CUDA out of memory. Tried to allocate 2.00 GiB")
    return (tokens.float() ** 2).mean()


def seq_len(rank, step):
    return 128 if (rank, step) == (1, 2) else 64


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
skipped = 0
for step in range(5):
    tokens = torch.arange(seq_len(rank, step))
    oom = torch.zeros(1)
    loss = None
    try:
        loss = forward(tokens)
    except RuntimeError as e:
        if "out of memory" not in str(e):
            raise
        oom.fill_(1)
    dist.all_reduce(oom, op=dist.ReduceOp.MAX)
    if oom.item() > 0:
        gc.collect()
        dist.barrier()
        skipped += 1
        continue
    dist.all_reduce(loss)
assert skipped == 1
dist.destroy_process_group()
