# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: recv_forward returns buffer and request, and the stage waits for the request before it computes
import torch
import torch.distributed as dist

HIDDEN = 512


def recv_forward(src):
    buf = torch.zeros(4, HIDDEN)
    return buf, dist.irecv(buf, src=src)


def send_forward(t, dst):
    dist.isend(t, dst=dst).wait()


def stage(rank, inp):
    return inp * (rank + 1) + 1


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    outputs = []
    if rank == 0:
        for micro in range(3):
            act = stage(rank, torch.full((4, HIDDEN), float(micro)))
            send_forward(act, 1)
    else:
        posted = [recv_forward(0) for _ in range(3)]
        for buf, req in posted:
            req.wait()
            outputs.append(stage(rank, buf))
        assert [o.mean().item() for o in outputs] == [3.0, 5.0, 7.0]
    dist.barrier()
    dist.destroy_process_group()


main()
