# ranks: 3
# kind: message-race
# faulty: 0
# lines: 17,21
# profile: gloo
# what: the learner takes the first rollout that arrives from any actor as the baseline for the second, so the advantage depends on who was faster
import torch
import torch.distributed as dist


class Learner:
    def __init__(self):
        self.value = torch.zeros(3)

    def receive(self):
        rollout = torch.empty(3)
        dist.recv(rollout)
        return rollout

    def update(self):
        baseline = self.receive()
        rollout = self.receive()
        self.value += 0.5 * (rollout - baseline)


def actor(rank, step):
    dist.send(torch.full((3,), float(rank * 10 + step)), dst=0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    learner = Learner()
    for step in range(2):
        if rank == 0:
            learner.update()
        else:
            actor(rank, step)
        dist.barrier()
    if rank == 0:
        print(learner.value.tolist())
    dist.destroy_process_group()


main()
