# ranks: 2
# kind: mismatch|deadlock
# faulty: 1
# lines: 17,38
# profile: gloo
# what: sharded generation: each rank breaks (line 29) at the end-of-sequence token of its own prompt; rank 1 is done first and goes to gather_object while rank 0 is in the all_gather of the next step
import torch
import torch.distributed as dist

EOS = 0


def forward_layer(h):
    # weights are sharded over ranks: each step needs a piece of everybody
    piece = h * 0.5 + dist.get_rank()
    pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, piece)
    return torch.stack(pieces).sum(0)


def generate(prompt_len, max_new_tokens=8):
    h = torch.ones(4)
    out = []
    for i in range(max_new_tokens):
        h = forward_layer(h).clamp(max=3)
        token = max(prompt_len - i, EOS)
        out.append(token)
        if token == EOS:
            break
    return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokens = generate(prompt_len=5 if rank == 0 else 3)
    everything = [None, None] if rank == 0 else None
    dist.gather_object(tokens, everything, dst=0)
    if rank == 0:
        print(everything)
    dist.destroy_process_group()


main()
