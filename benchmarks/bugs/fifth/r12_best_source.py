# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the source is chosen from the gathered scores and thus the same on all ranks
import torch
import torch.distributed as dist

HISTORY = {0: [0.50, 0.60], 1: [0.40, 0.41], 2: [0.45, 0.75]}


class Comm:
    rank = property(lambda self: dist.get_rank())
    size = property(lambda self: dist.get_world_size())

    def broadcast_state(self, state, src=0):
        for key in sorted(state):
            dist.broadcast(state[key], src)

    def gather_scalar(self, value):
        out = [torch.zeros(1) for _ in range(self.size)]
        dist.all_gather(out, torch.tensor([value]))
        return torch.cat(out)


class PopulationTrainer:
    def __init__(self, comm):
        self.comm = comm
        self.best = 0.7
        self.state = {"w": torch.full((3, 3), float(comm.rank)), "b": torch.zeros(3)}

    def exploit(self, score):
        scores = self.comm.gather_scalar(score)
        src = int(scores.argmax()) if scores.max() > self.best else 0
        self.best = max(self.best, scores.max().item())
        self.comm.broadcast_state(self.state, src=src)

    def fit(self, history):
        for score in history:
            self.state["w"].add_(0.1)
            self.exploit(score)
        return self.state["w"].mean().item()


dist.init_process_group("gloo")
comm = Comm()
print(comm.rank, round(PopulationTrainer(comm).fit(HISTORY[comm.rank]), 3))
dist.barrier()
dist.destroy_process_group()
