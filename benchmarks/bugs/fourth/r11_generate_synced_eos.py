# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: sharded generation with synced_gpus: a finished rank goes on with dummy steps until the reduced flag says that all are done
import torch
import torch.distributed as dist

EOS = 0


def forward_layer(h):
    piece = h * 0.5 + dist.get_rank()
    pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, piece)
    return torch.stack(pieces).sum(0)


def all_finished(finished):
    unfinished = torch.tensor(0.0 if finished else 1.0)
    dist.all_reduce(unfinished)
    return unfinished.item() == 0.0


def generate(prompt_len, max_new_tokens=8):
    h = torch.ones(4)
    out, finished = [], False
    for i in range(max_new_tokens):
        if all_finished(finished):
            break
        h = forward_layer(h).clamp(max=3)
        if finished:
            continue
        token = max(prompt_len - i, EOS)
        out.append(token)
        finished = token == EOS
    return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokens = generate(prompt_len=5 if rank == 0 else 3)
    everything = [None, None] if rank == 0 else None
    dist.gather_object(tokens, everything, dst=0)
    if rank == 0:
        assert [len(t) for t in everything] == [6, 4]
    dist.destroy_process_group()


main()
