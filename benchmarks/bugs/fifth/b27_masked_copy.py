# ranks: 3
# kind: lost-result
# faulty: any
# lines: 26,29,40
# profile: gloo
# what: all_reduce works on the copy that boolean indexing makes, so the counts of the tracked classes stay local
import torch
import torch.distributed as dist


class ConfusionCounts(torch.nn.Module):
    def __init__(self, classes, ignore=()):
        super().__init__()
        self.register_buffer("hits", torch.zeros(classes))
        self.register_buffer("seen", torch.zeros(classes))
        mask = torch.ones(classes, dtype=torch.bool)
        mask[list(ignore)] = False
        self.register_buffer("tracked", mask)

    def update(self, pred, target):
        self.seen += torch.bincount(target, minlength=len(self.seen))
        self.hits += torch.bincount(target[pred == target], minlength=len(self.hits))

    def synchronize(self):
        for counts in (self.hits, self.seen):
            dist.all_reduce(counts[self.tracked])

    def compute(self):
        hits, seen = self.hits[self.tracked], self.seen[self.tracked]
        return (hits.sum() / seen.sum()).item(), int(seen.sum())


def evaluate():
    torch.manual_seed(dist.get_rank())
    metric = ConfusionCounts(5, ignore=[0])
    for _ in range(4):
        target = torch.randint(0, 5, (20,))
        pred = torch.where(torch.rand(20) < 0.7, target, torch.zeros_like(target))
        metric.update(pred, target)
    metric.synchronize()
    return metric.compute()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    accuracy, samples = evaluate()
    print(f"rank {dist.get_rank()}: accuracy {accuracy:.3f} over {samples} samples")
    dist.destroy_process_group()
