# ranks: 4
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: rank 0 takes any-source results and puts each one at the index of its sender
import time

import torch
import torch.distributed as dist

PROMPTS = ["one", "two two", "three three three"]


def score(prompt, rank):
    time.sleep(0.02 * (4 - rank))
    return torch.tensor([float(len(prompt.split())), float(rank)])


def rollout_worker(rank):
    dist.send(score(PROMPTS[rank - 1], rank), dst=0)


def collect(world):
    rewards = [None] * (world - 1)
    for _ in range(1, world):
        buf = torch.empty(2)
        sender = dist.recv(buf)
        rewards[sender - 1] = buf[0].item()
    return rewards


def learner(world):
    rewards = collect(world)
    table = {p: r for p, r in zip(PROMPTS, rewards)}
    best = max(table, key=table.get)
    print("rewards", table, "best prompt:", best)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    me = dist.get_rank()
    if me == 0:
        learner(dist.get_world_size())
    else:
        rollout_worker(me)
    dist.barrier()
    dist.destroy_process_group()
