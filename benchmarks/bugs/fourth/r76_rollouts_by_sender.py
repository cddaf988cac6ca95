# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the learner receives from any actor, but puts each rollout into the slot of the sender that recv returns
import torch
import torch.distributed as dist


class Learner:
    def __init__(self, actors):
        self.value = torch.zeros(3)
        self.slots = {a: torch.empty(3) for a in actors}

    def receive(self):
        rollout = torch.empty(3)
        src = dist.recv(rollout)
        self.slots[src] = rollout

    def update(self):
        for _ in range(len(self.slots)):
            self.receive()
        self.value += 0.5 * (self.slots[2] - self.slots[1])


def actor(rank, step):
    dist.send(torch.full((3,), float(rank * 10 + step)), dst=0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    learner = Learner(actors=[1, 2])
    for step in range(2):
        if rank == 0:
            learner.update()
        else:
            actor(rank, step)
        dist.barrier()
    if rank == 0:
        assert learner.value.tolist() == [10.0] * 3
    dist.destroy_process_group()


main()
