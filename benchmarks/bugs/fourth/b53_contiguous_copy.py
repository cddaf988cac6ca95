# ranks: 2
# kind: lost-result
# faulty: any
# lines: 12,13
# profile: gloo
# what: the transposed gradient is not contiguous, so all_reduce works on the copy that .contiguous() makes and grad itself stays local
import torch
import torch.distributed as dist


def sync(t):
    dist.all_reduce(t.contiguous())
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
    print(rank, head.embedding.sum().item())
    dist.destroy_process_group()


main()
