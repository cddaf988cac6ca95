# ranks: 3
# kind: mismatch|deadlock
# faulty: 0
# lines: 47,14,38
# profile: gloo
# what: the decorator puts a barrier behind the decorated function; the caller calls the function on rank 0 only, the others are in the broadcast of the next stage
import functools

import torch
import torch.distributed as dist


def barrier(name):
    dist.barrier()


def synchronized(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        out = fn(*args, **kwargs)
        barrier(fn.__name__)
        return out

    return inner


@synchronized
def write_index(shards):
    return {name: i for i, name in enumerate(shards)}


@synchronized
def warmup(model):
    return model.sum().item()


def load_weights(model):
    dist.broadcast(model, src=0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.full((3, 3), float(rank))
    warmup(model)
    if rank == 0:
        index = write_index(["00001-of-00002", "00002-of-00002"])
        print(index)
    load_weights(model)
    dist.destroy_process_group()


main()
