# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: input and output are cut from one pool next to each other, rounded up to its alignment, and do not overlap
import torch
import torch.distributed as dist


class Pool:
    def __init__(self, numel):
        self.buf = torch.zeros(numel)
        self.used = 0

    def take(self, n):
        out = self.buf[self.used:self.used + n]
        # round up to the alignment of the pool
        self.used += (n + 3) // 4 * 4
        return out


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pool = Pool(64)
    inp = pool.take(6)
    out = pool.take(6 * world)
    inp.fill_(rank + 1.0)
    dist.all_gather_into_tensor(out, inp)
    assert out.tolist() == [1.0] * 6 + [2.0] * 6
    dist.barrier()
    dist.destroy_process_group()


main()
