# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the works of the asynchronous broadcasts are collected and all waited for before update_weights returns
import torch
import torch.distributed as dist


class RolloutWorker:
    def __init__(self):
        self.params = {"wte": torch.zeros(256, 32), "head": torch.zeros(32, 256)}

    def update_weights(self, src):
        works = []
        for name in sorted(self.params):
            works.append(dist.broadcast(self.params[name], src=src, async_op=True))
        for work in works:
            work.wait()

    def generate(self, tokens):
        h = self.params["wte"][tokens]
        return (h @ self.params["head"]).sum()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    worker = RolloutWorker()
    prompt = torch.arange(5)
    for it in range(3):
        if rank == 0:
            for p in worker.params.values():
                p.fill_(it + 1.0)
        dist.barrier()
        worker.update_weights(src=0)
        out = worker.generate(prompt)
        assert out.item() == 5 * 256 * 32 * (it + 1) ** 2
        dist.barrier()
    dist.destroy_process_group()


main()
