# ranks: 3
# kind: mismatch|deadlock
# faulty: 0
# lines: 16,23
# profile: gloo
# what: rank 0 alone enters the barrier inside save_checkpoint while ranks 1,2 are already in the next step's all_reduce; wanted: barrier on rank 0 meets all_reduce on the others
import torch
import torch.distributed as dist

STATE = {}


def save_checkpoint(w, step):
    STATE[step] = w.clone()
    # make sure nobody reads a half written file
    dist.barrier()


def train(rank, ws):
    w = torch.zeros(4)
    for step in range(6):
        g = torch.full((4,), float(rank + step))
        dist.all_reduce(g)
        w -= 0.1 * g / ws
        if step % 4 == 3 and rank == 0:
            save_checkpoint(w, step)
    return w


def main():
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
