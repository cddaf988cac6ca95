# ranks: 3
# kind: deadlock
# faulty: any
# lines: 26,40,42
# profile: gloo
# what: only the leader of the evaluator group gathers the scores (get_rank(group) == 0), its other member goes to the final all_reduce of the world
import torch
import torch.distributed as dist

EVALUATORS = [1, 2]


class Evaluator:
    def __init__(self, group):
        self.group = group
        self.scores = []

    def score(self, n):
        self.scores.append(float(n) / (dist.get_rank() + 1))

    def is_leader(self):
        return dist.get_rank(self.group) == 0

    def collect(self):
        out = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(out, self.scores, group=self.group)
        return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group(EVALUATORS)
    done = torch.zeros(1)
    if rank in EVALUATORS:
        ev = Evaluator(group)
        for n in range(4):
            ev.score(n)
        if ev.is_leader():
            print(ev.collect())
        done += 1
    dist.all_reduce(done)
    dist.destroy_process_group()


main()
