# ranks: 2
# decides: order
# kind: mismatch|deadlock|thread-race|rank-failed
# lines: 16,21,29
# minimum: 0
# report: https://github.com/pytorch/pytorch/issues/18300
# what: a thread broadcasts the next batch on the group on which the main thread reduces
#     gradients, so the two calls may pair crosswise
import threading

import torch
import torch.distributed as dist


def fetch(batch, group):
    dist.broadcast(batch, src=0, group=group)


def main():
    dist.init_process_group("gloo")
    group = None
    rank, world = dist.get_rank(), dist.get_world_size()
    batch = torch.ones(4)
    for step in range(2):
        coming = torch.full((4,), step + 2.0) if rank == 0 else torch.zeros(4)
        prefetch = threading.Thread(target=fetch, args=(coming, group))
        prefetch.start()
        gradient = batch * 10
        dist.all_reduce(gradient)
        prefetch.join()
        expected = (step + 1.0) * 10 * world
        assert gradient.tolist() == [expected] * 4, f"step {step}: {gradient.tolist()}"
        batch = coming
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
