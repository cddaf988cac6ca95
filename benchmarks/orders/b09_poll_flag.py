# ranks: 2
# decides: order
# kind: mismatch|deadlock|rank-failed|unwaited-work
# lines: 22-26
# minimum: 1
# report: https://github.com/BLAST-WarpX/warpx/pull/2870
# what: each rank asks whether the vote about stopping is complete, and the ranks see that
#     in different steps
import torch
import torch.distributed as dist


def train(steps):
    vote = work = None
    for step in range(steps):
        gradient = torch.ones(4)
        dist.all_reduce(gradient)
        if work is None:
            vote = torch.tensor([float(step >= 2)])
            work = dist.all_reduce(vote, async_op=True)
            continue
        if work.is_completed():
            work.wait()
            if vote.item() > 0:
                return step
            work = None
    return steps


def main():
    dist.init_process_group("gloo")
    last = torch.tensor([float(train(steps=6))])
    sums = last.clone()
    dist.all_reduce(sums)
    assert sums.item() == last.item() * dist.get_world_size(), "not the same step"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
