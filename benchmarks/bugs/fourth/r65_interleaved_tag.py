# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: interleaved stages: micro batch and chunk make up the tag, so rank 1 may post its receives in another order
import torch
import torch.distributed as dist

CHUNKS = 2


def tag_of(micro, chunk):
    return micro * CHUNKS + chunk + 1


def send_chunks(micro):
    works = []
    for chunk in range(CHUNKS):
        t = torch.full((5,), 10.0 * micro + chunk)
        works.append((dist.isend(t, 1, tag=tag_of(micro, chunk)), t))
    for w, _ in works:
        w.wait()


def recv_chunks(micro):
    bufs = {}
    works = []
    # the deepest chunk is needed first
    for chunk in reversed(range(CHUNKS)):
        bufs[chunk] = torch.empty(5)
        works.append(dist.irecv(bufs[chunk], 0, tag=tag_of(micro, chunk)))
    for w in works:
        w.wait()
    return [bufs[c][0].item() for c in range(CHUNKS)]


dist.init_process_group("gloo")
for micro in range(3):
    if dist.get_rank() == 0:
        send_chunks(micro)
    else:
        assert recv_chunks(micro) == [10.0 * micro, 10.0 * micro + 1]
dist.barrier()
dist.destroy_process_group()
