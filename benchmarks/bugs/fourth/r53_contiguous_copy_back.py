# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the contiguous copy is reduced and copied back into the non-contiguous gradient
import torch
import torch.distributed as dist


def sync(t):
    c = t.contiguous()
    dist.all_reduce(c)
    if c is not t:
        t.copy_(c)
    t /= dist.get_world_size()


class TiedHead:
    def __init__(self):
        self.embedding = torch.arange(12.0).view(4, 3)

    def backward(self, rank):
        # gradient arrives in the layout of the output head
        return (torch.ones(3, 4) * (rank + 1)).t()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    head = TiedHead()
    for step in range(3):
        grad = head.backward(rank)
        sync(grad)
        head.embedding -= 0.1 * grad
    assert abs(head.embedding.sum().item() - (66 - 3 * 0.1 * 1.5 * 12)) < 1e-3
    dist.destroy_process_group()


main()
