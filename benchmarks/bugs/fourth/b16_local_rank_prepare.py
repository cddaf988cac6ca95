# ranks: 2
# kind: deadlock|mismatch
# faulty: 1
# lines: 19,30
# profile: gloo
# what: rank 1 returns from main because preprocessing is left to local rank 0, which then waits in the broadcast of the vocabulary
import os

import torch
import torch.distributed as dist


def build_vocab():
    return torch.arange(12).view(3, 4)


def prepare_data(local_rank):
    vocab = build_vocab() if local_rank == 0 else torch.empty(3, 4, dtype=torch.int64)
    dist.broadcast(vocab, src=0)
    return vocab


def main():
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    dist.init_process_group("gloo")
    dist.barrier()
    if local_rank != 0:
        # preprocessing is done by the first process of the node
        return
    vocab = prepare_data(local_rank)
    print("vocab", tuple(vocab.shape))
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
