# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/pytorch/pytorch/issues/123969
# what: the heartbeat thread is stopped before the heartbeat is deleted
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
    stop.set()
    heart.join()
    store.delete_key(f"alive/{rank}")
    dist.barrier()
    if rank == 0:
        left = [peer for peer in range(world) if store.check([f"alive/{peer}"])]
        assert not left, f"ranks {left} have left and are alive"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
