# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the decorator itself lets only rank 0 run the body and then makes the barrier on all ranks; the caller calls it everywhere
import functools

import torch
import torch.distributed as dist


def barrier(name):
    dist.barrier()


def main_process_first(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        out = fn(*args, **kwargs) if dist.get_rank() == 0 else None
        barrier(fn.__name__)
        return out

    return inner


@main_process_first
def write_index(shards):
    return {name: i for i, name in enumerate(shards)}


@main_process_first
def warmup(model):
    return model.sum().item()


def load_weights(model):
    dist.broadcast(model, src=0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.full((3, 3), float(rank))
    warmup(model)
    index = write_index(["00001-of-00002", "00002-of-00002"])
    assert (index is not None) == (rank == 0)
    load_weights(model)
    assert model.sum().item() == 0
    dist.destroy_process_group()


main()
