# ranks: 2
# kind: mismatch|deadlock
# faulty: 1
# lines: 21,42
# profile: gloo
# what: rank 1 runs into an out-of-memory error, its handler frees memory and enters a barrier while rank 0 is in the all_reduce of the step
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
    try:
        loss = forward(tokens)
        dist.all_reduce(loss)
    except RuntimeError as e:
        if "out of memory" not in str(e):
            raise
        gc.collect()
        # let the other ranks catch up before the next batch
        dist.barrier()
        skipped += 1
        continue
    if rank == 0:
        print(step, loss.item() / ws)
dist.destroy_process_group()
