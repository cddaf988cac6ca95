# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: ranks do different amounts of local work, meet in a monitored_barrier, clean up in finally and leave by sys.exit(0)
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        for _ in range(rank + 1):
            time.sleep(0.1)
        dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
        t = torch.tensor([rank])
        dist.reduce(t, dst=2, op=dist.ReduceOp.MAX)
        if rank != 2:
            return 0
        assert t.item() == 2
        return 0
    finally:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
