# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: a barrier after each round orders the read of a version before the write of the next one
import torch
import torch.distributed as dist


class WeightPublisher:
    def __init__(self, dim):
        self.store = dist.distributed_c10d._get_default_store()
        self.weight = torch.zeros(dim)

    def push(self, version):
        self.weight.fill_(version)
        self.store.set("weight_version", str(version))
        dist.broadcast(self.weight, src=0)

    def pull(self):
        dist.broadcast(self.weight, src=0)
        return int(self.store.get("weight_version"))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pub = WeightPublisher(4)
    for version in range(1, 6):
        if rank == 0:
            pub.push(version)
        else:
            got = pub.pull()
            assert got == version == pub.weight[0].item()
        dist.barrier()
    dist.destroy_process_group()


main()
