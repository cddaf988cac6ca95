# ranks: 2
# kind: crossed-order|message-race|backend-hazard
# faulty: any
# lines: 21,32
# profile: gloo
# what: interleaved stages: the tag is the micro batch only, so the two model chunks of one micro batch have the same tag, and rank 1 asks for chunk 1 first
import torch
import torch.distributed as dist

CHUNKS = 2


def tag_of(micro, chunk):
    return micro + 1


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
        print(micro, recv_chunks(micro))
dist.barrier()
dist.destroy_process_group()
