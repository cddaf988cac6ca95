# ranks: 2
# kind: unwaited-work|in-flight-buffer
# faulty: 1
# lines: 15,24
# profile: gloo
# what: stage 1 posts an irecv for the activation, drops the request and runs its layer on the buffer at once
import torch
import torch.distributed as dist

HIDDEN = 512


def recv_forward(src):
    buf = torch.zeros(4, HIDDEN)
    dist.irecv(buf, src=src)
    return buf


def send_forward(t, dst):
    dist.isend(t, dst=dst).wait()


def stage(rank, inp):
    return inp * (rank + 1) + 1


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    outputs = []
    for micro in range(3):
        if rank == 0:
            act = stage(rank, torch.full((4, HIDDEN), float(micro)))
            send_forward(act, 1)
        else:
            act = recv_forward(0)
            outputs.append(stage(rank, act))
    if outputs:
        print([o.mean().item() for o in outputs])
    dist.barrier()
    dist.destroy_process_group()


main()
