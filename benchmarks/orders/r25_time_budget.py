# ranks: 2
# decides: time
# kind: none
# lines: none
# minimum: none
# faults: delay
# report: https://github.com/microsoft/superbenchmark/pull/347
# what: the ranks reduce whether time is up, so that all stop after the same step
import time
from datetime import timedelta

import torch
import torch.distributed as dist

BUDGET = 0.02


def is_over(start):
    over = time.monotonic() - start >= BUDGET
    votes = torch.tensor([float(over)])
    dist.all_reduce(votes)
    over = votes.item() > 0
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
