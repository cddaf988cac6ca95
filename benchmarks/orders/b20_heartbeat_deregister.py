# ranks: 2
# decides: order
# kind: rank-failed
# lines: 30-32,36
# minimum: 0
# report: https://github.com/pytorch/pytorch/issues/123969
# what: a rank deletes its heartbeat before its heartbeat thread has stopped, which may
#     write it once more
import threading
import time

import torch
import torch.distributed as dist


def beat(store, rank, stop):
    while not stop.wait(0.005):
        store.set(f"alive/{rank}", "1")


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    stop = threading.Event()
    heart = threading.Thread(target=beat, args=(store, rank, stop))
    heart.start()
    dist.all_reduce(torch.ones(1))
    time.sleep(0.005)
    store.delete_key(f"alive/{rank}")
    stop.set()
    heart.join()
    dist.barrier()
    if rank == 0:
        left = [peer for peer in range(world) if store.check([f"alive/{peer}"])]
        assert not left, f"ranks {left} have left and are alive"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
