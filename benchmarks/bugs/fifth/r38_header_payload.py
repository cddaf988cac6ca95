# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: rank 0 takes the header from any source and the payload from the sender of that header
import random
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist

HEADER, PAYLOAD = 10, 11


@contextmanager
def process_group():
    dist.init_process_group("gloo")
    yield dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()


def post_sample(rank, index):
    works = [dist.isend(torch.tensor([rank, index]), 0, tag=HEADER)]
    time.sleep(0.05 if rank == 1 else 0.0)  # rank 1 has the slower encoder
    encoded = torch.full((8,), float(100 * rank + index))
    works.append(dist.isend(encoded, 0, tag=PAYLOAD))
    for work in works:
        work.wait()


def take_sample():
    header, payload = torch.empty(2, dtype=torch.int64), torch.empty(8)
    source = dist.recv(header, tag=HEADER)
    dist.recv(payload, source, tag=PAYLOAD)
    rank, index = header.tolist()
    return rank == source and payload[0].item() == 100 * rank + index


def main(samples=4):
    with process_group() as (rank, world):
        if rank == 0:
            good = [take_sample() for _ in range(samples * (world - 1))]
            print(f"{sum(good)} of {len(good)} samples fit their header")
        else:
            for i in range(samples):
                time.sleep(random.uniform(0, 0.02))
                post_sample(rank, i)


main()
