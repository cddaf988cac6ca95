# ranks: 2
# decides: time
# kind: mismatch|deadlock|rank-failed
# lines: 19,26-32
# minimum: 1
# faults: delay
# report: https://github.com/microsoft/superbenchmark/pull/347
# what: each rank stops by its own clock, so one rank may begin a step more than the other
import time
from datetime import timedelta

import torch
import torch.distributed as dist

BUDGET = 0.02


def is_over(start):
    over = time.monotonic() - start >= BUDGET
    return over


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=6))
    start, steps = time.monotonic(), 0
    while not is_over(start):
        time.sleep(0.006)
        gradient = torch.ones(4)
        dist.all_reduce(gradient)
        steps += 1
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, steps)
    assert len(set(counts)) == 1, f"the ranks made {counts} steps"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
