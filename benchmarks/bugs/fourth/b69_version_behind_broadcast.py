# ranks: 2
# kind: message-race
# faulty: any
# lines: 18,23
# profile: gloo
# what: the broadcast orders the write of a version before its read, but nothing orders the read before the write of the next version: rank 0 does not wait for rank 1
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
            print("weights", pub.weight[0].item(), "labelled", got)
    dist.barrier()
    dist.destroy_process_group()


main()
