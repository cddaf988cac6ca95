# ranks: 3
# kind: message-race
# faulty: 0
# lines: 29,32,48
# profile: gloo
# what: rank 0 reads the counter of finished samples before the barrier, so the value depends on how many ranks have added theirs
import os
import tempfile
import time

import torch.distributed as dist


def rank0():
    return dist.get_rank() == 0


def shared_store():
    box = [tempfile.mkdtemp(prefix="count_") if rank0() else None]
    dist.broadcast_object_list(box, src=0)
    return dist.FileStore(os.path.join(box[0], "store"), dist.get_world_size())


class Progress:
    def __init__(self, store):
        self.store = store

    def add(self, n):
        self.store.add("samples", n)

    def total(self):
        return self.store.add("samples", 0)


def process(files):
    done = 0
    for i in range(files):
        time.sleep(0.01 * dist.get_rank())
        done += 10 + i
    return done


def main():
    dist.init_process_group("gloo")
    progress = Progress(shared_store())
    progress.add(process(files=4))
    if rank0():
        print("samples in all:", progress.total())
    dist.barrier()
    dist.destroy_process_group()


main()
