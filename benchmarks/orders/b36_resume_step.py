# ranks: 2
# decides: fault
# kind: mismatch|deadlock|rank-failed
# lines: 19,32-37
# minimum: 1
# faults: kill
# restarts: 3
# report: https://github.com/KempnerInstitute/KempnerForge/issues/49
# what: after a restart each rank goes on behind the step that it has saved itself, which
#     may not be the same on all
import os
from pathlib import Path

import torch
import torch.distributed as dist


def first_step(saved):
    first = int(saved.read_text()) if saved.exists() else 0
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
