# ranks: 3
# kind: unwaited-work|in-flight-buffer
# faulty: any
# lines: 17,20
# profile: gloo
# what: weights go from the trainer to the rollout ranks with asynchronous broadcasts that nobody waits for; generate multiplies with them directly
import torch
import torch.distributed as dist


class RolloutWorker:
    def __init__(self):
        self.params = {"wte": torch.zeros(256, 32), "head": torch.zeros(32, 256)}

    def update_weights(self, src):
        for name in sorted(self.params):
            dist.broadcast(self.params[name], src=src, async_op=True)

    def generate(self, tokens):
        h = self.params["wte"][tokens]
        return (h @ self.params["head"]).argmax(-1)


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
        print(rank, it, out.sum().item())
        dist.barrier()
    dist.destroy_process_group()


main()
