# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the helper reduces the number of elements, which is a tensor of one element on every rank, empty or not
import torch
import torch.distributed as dist
import torch.nn.functional as F


def reduce_count(t):
    n = torch.tensor(float(t.numel()))
    dist.all_reduce(n)
    return (n / dist.get_world_size()).clamp(min=1.0)


class DetectionLoss:
    def __init__(self, threshold=0.5):
        self.threshold = threshold

    def __call__(self, scores, boxes, targets):
        positive = scores > self.threshold
        picked = boxes[positive]
        box = F.l1_loss(picked, targets[positive], reduction="sum") / reduce_count(picked)
        cls = F.binary_cross_entropy(scores, positive.float(), reduction="sum")
        return box + cls / reduce_count(scores)


def sync_grads(params):
    for p in params:
        dist.all_reduce(p.grad)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    criterion = DetectionLoss()
    head = torch.randn(4, 4, requires_grad=True)
    for step in range(3):
        scores = torch.full((6,), 0.2)
        if not (rank == 1 and step == 1):
            scores[:3] = 0.9
        boxes = torch.rand(6, 4) @ head
        loss = criterion(scores, boxes, torch.zeros(6, 4))
        head.grad = None
        loss.backward()
        sync_grads([head])
    dist.destroy_process_group()


main()
