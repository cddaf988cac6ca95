# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: every epoch has a key of its own, which is written once; get waits until it is there
import torch
import torch.distributed as dist


class LrServer:
    def __init__(self):
        self.store = dist.PrefixStore("lr_server", dist.distributed_c10d._get_default_store())

    def publish(self, epoch, lr):
        self.store.set(f"lr/{epoch}", repr(lr))

    def fetch(self, epoch):
        return float(self.store.get(f"lr/{epoch}"))


dist.init_process_group("gloo")
rank = dist.get_rank()
server = LrServer()
w = torch.ones(4)
used = []
for epoch in range(4):
    if rank == 0:
        lr = 0.1 * 0.5 ** epoch
        server.publish(epoch, lr)
    else:
        lr = server.fetch(epoch)
    used.append(lr)
    w -= lr * w
assert used == [0.1, 0.05, 0.025, 0.0125]
dist.barrier()
dist.destroy_process_group()
