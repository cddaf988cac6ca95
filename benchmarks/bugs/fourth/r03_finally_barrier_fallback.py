# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the ValueError of rank 2 is caught inside the step and replaced by clamped labels without any collective, and the finally barrier is reached by all ranks at the end
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
        try:
            check(labels)
        except ValueError as e:
            print("clamped:", e)
            labels = labels.clamp(max=NUM_CLASSES - 1)
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
        assert total > 0
    finally:
        cleanup()


if __name__ == "__main__":
    main()
