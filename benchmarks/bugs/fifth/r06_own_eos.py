# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: ranks that reached the end of sequence go on with padding until all have finished
import torch
import torch.distributed as dist

EOS, PAD = 0, 99


class ShardedLM:
    def __init__(self, rank, world):
        self.shard = torch.arange(4.0) + 4 * rank
        self.world = world

    def gather_weight(self):
        full = torch.empty(4 * self.world)
        dist.all_gather_into_tensor(full, self.shard)
        return full

    def next_token(self, prefix):
        weight = self.gather_weight()
        score = int(weight.sum().item()) + len(prefix)
        return EOS if len(prefix) >= prefix[0] else 1 + score % 7


@torch.no_grad()
def generate(model, prompt, max_new=8):
    tokens, finished = list(prompt), False
    for _ in range(max_new):
        token = model.next_token(tokens)
        token = PAD if finished else token
        tokens.append(token)
        finished = finished or token == EOS
        running = torch.tensor([0 if finished else 1])
        dist.all_reduce(running)
        if running.item() == 0:
            break
    return tokens


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = ShardedLM(rank, dist.get_world_size())
    out = generate(model, [6] if rank == 0 else [3])
    lengths = [None] * dist.get_world_size()
    dist.all_gather_object(lengths, len(out))
    print(rank, out, lengths)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
