# ranks: 2
# decides: order
# kind: mismatch|deadlock|thread-race|rank-failed
# lines: 16,21,26
# minimum: 0
# report: https://github.com/KempnerInstitute/KempnerForge/issues/104
# what: the thread that saves reduces on the same group on which the main thread meets at a
#     barrier, and nothing says which comes first
import threading

import torch
import torch.distributed as dist


def plan_save(group, sizes):
    dist.all_reduce(sizes, group=group)


def main():
    dist.init_process_group("gloo")
    group = None
    rank = dist.get_rank()
    sizes = torch.tensor([10.0 * (rank + 1)])
    saving = threading.Thread(target=plan_save, args=(group, sizes))
    saving.start()
    dist.barrier()
    saving.join()
    assert sizes.item() == 30.0, f"rank {rank} plans for {sizes.item()} bytes"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
