"""Start again from the last checkpoint when a rank fails, as torchrun restarts all of them.

    phalanx run -n 4 --max-restarts 3 examples/fault_tolerance/restart.py

With --faults 'kill(rank=2, at=call(9))' rank 2 is killed in its ninth call: all ranks start
again, find the checkpoint of the last whole step and end with the same weights. Rank 0 writes
a checkpoint to another name and renames it, so a reader finds the old one or the new one, and
all ranks learn from rank 0 which one it was: a rank that looked for itself might find a newer
one.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist

STEPS = 6
FOLDER = sys.argv[1] if sys.argv[1:] else os.path.join(tempfile.gettempdir(), "restart-example")
PATH = os.path.join(FOLDER, "last.pt")


def save(step: int, weight: torch.Tensor) -> None:
    os.makedirs(FOLDER, exist_ok=True)
    torch.save({"step": step, "weight": weight}, f"{PATH}.new")
    os.replace(f"{PATH}.new", PATH)


def restore() -> tuple[int, torch.Tensor]:
    """What rank 0 finds, on all ranks."""
    found = [None]
    if dist.get_rank() == 0 and os.path.exists(PATH):
        found = [torch.load(PATH)]
    dist.broadcast_object_list(found)
    if found[0] is None:
        return 0, torch.zeros(2)
    return found[0]["step"], found[0]["weight"]


def main() -> None:
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    if restarts == 0 and dist.get_rank() == 0 and os.path.exists(PATH):
        os.remove(PATH)  # of another training
    dist.barrier()
    step, weight = restore()
    print(f"attempt {restarts}: begins at step {step}")
    while step < STEPS:
        gradient = torch.full((2,), float(step + dist.get_rank()))
        dist.all_reduce(gradient)
        weight += gradient
        step += 1
        if dist.get_rank() == 0:
            save(step, weight)
        dist.barrier()
    ranks = dist.get_world_size()
    expected = sum(ranks * step + sum(range(ranks)) for step in range(STEPS))
    assert weight.tolist() == [expected] * 2, (weight, expected)
    print(f"trained {STEPS} steps, weight {weight[0].item()}")
    if dist.get_rank() == 0:
        os.remove(PATH)
        os.rmdir(FOLDER)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
