# ranks: 4
# kind: rank-failed
# faulty: 3
# lines: 15,23
# profile: gloo
# what: rank 3 dies of a KeyError in its vocabulary lookup; the others are stuck in all_reduce because of it
import torch
import torch.distributed as dist

VOCAB = {w: i for i, w in enumerate("the cat sat on a mat".split())}
SHARDS = ["the cat", "sat on", "a mat", "the dog"]


def encode(text):
    return torch.tensor([VOCAB[w] for w in text.split()]).float()


dist.init_process_group("gloo")
rank = dist.get_rank()
for epoch in range(2):
    words = SHARDS[rank] if epoch else "the mat"
    v = encode(words)
    dist.all_reduce(v)
dist.destroy_process_group()
