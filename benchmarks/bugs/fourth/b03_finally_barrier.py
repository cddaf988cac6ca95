# ranks: 3
# kind: mismatch|deadlock|rank-failed
# faulty: 2
# lines: 15,32
# profile: gloo
# what: rank 2 raises a ValueError for a label out of range; its finally block enters the barrier while the others wait in the loss all_reduce
import torch
import torch.distributed as dist

NUM_CLASSES = 4


def check(labels):
    if int(labels.max()) >= NUM_CLASSES:
        raise ValueError(f"label {int(labels.max())} out of range")


def run_epoch(rank):
    total = 0.0
    for step in range(4):
        labels = torch.arange(4) % NUM_CLASSES
        if rank == 2 and step == 2:
            labels = labels + 1
        check(labels)
        loss = labels.float().sum() / NUM_CLASSES
        dist.all_reduce(loss)
        total += loss.item()
    return total


def cleanup():
    dist.barrier()
    dist.destroy_process_group()


def main():
    dist.init_process_group("gloo")
    try:
        total = run_epoch(dist.get_rank())
        print("done", total)
    finally:
        cleanup()


if __name__ == "__main__":
    main()
