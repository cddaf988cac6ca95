# ranks: 2
# kind: invalid-call
# faulty: any
# lines: 30
# profile: gloo
# what: input and output of all_gather_into_tensor are cut from one memory pool with an offset that is too small, so they overlap by half
import torch
import torch.distributed as dist


class Pool:
    def __init__(self, numel):
        self.buf = torch.zeros(numel)
        self.used = 0

    def take(self, n):
        out = self.buf[self.used:self.used + n]
        # round down to the alignment of the pool
        self.used += n // 4 * 4
        return out


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pool = Pool(64)
    inp = pool.take(6)
    out = pool.take(6 * world)
    inp.fill_(rank + 1.0)
    dist.all_gather_into_tensor(out, inp)
    print(rank, out.tolist())
    dist.barrier()
    dist.destroy_process_group()


main()
