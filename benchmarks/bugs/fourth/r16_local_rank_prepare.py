# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: only local rank 0 builds the vocabulary, but all ranks take part in its broadcast and return after it
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
    vocab = prepare_data(local_rank)
    assert int(vocab.sum()) == 66
    dist.barrier()
    if local_rank != 0:
        return
    print("vocab", tuple(vocab.shape))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
