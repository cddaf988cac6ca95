# ranks: 3
# kind: message-race
# faulty: any
# lines: 16,19
# profile: gloo
# what: rank 0 sets the key "lr" anew in every epoch and the others read it without any order between the read and the next write
import torch
import torch.distributed as dist


class LrServer:
    def __init__(self):
        self.store = dist.PrefixStore("lr_server", dist.distributed_c10d._get_default_store())

    def publish(self, lr):
        self.store.set("lr", repr(lr))

    def fetch(self):
        return float(self.store.get("lr"))


dist.init_process_group("gloo")
rank = dist.get_rank()
server = LrServer()
w = torch.ones(4)
used = []
for epoch in range(4):
    if rank == 0:
        lr = 0.1 * 0.5 ** epoch
        server.publish(lr)
    else:
        lr = server.fetch()
    used.append(lr)
    w -= lr * w
print(rank, used)
dist.barrier()
dist.destroy_process_group()
