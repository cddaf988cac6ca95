# ranks: 2
# decides: fault
# kind: none
# lines: none
# minimum: none
# faults: kill
# restarts: 3
# report: https://github.com/KempnerInstitute/KempnerForge/issues/49
# what: after a restart the ranks agree on the lowest step that all have saved
import os
from pathlib import Path

import torch
import torch.distributed as dist


def first_step(saved):
    first = int(saved.read_text()) if saved.exists() else 0
    lowest = torch.tensor([first])
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    first = int(lowest)
    return first


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    saved = Path(f"saved-{rank}")
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        saved.unlink(missing_ok=True)
    for step in range(first_step(saved), 3):
        gradient = torch.tensor([float(step)])
        dist.all_reduce(gradient)
        assert gradient.item() == step * world, f"rank {rank}, step {step}: {gradient.item()}"
        store.set(f"progress/{rank}", str(step))
        saved.with_suffix(".new").write_text(str(step + 1))
        os.replace(saved.with_suffix(".new"), saved)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
