# ranks: 2
# decides: fault
# kind: rank-failed
# lines: 24,31
# minimum: 1
# faults: kill
# report: https://github.com/petuum/adaptdl/pull/81
# what: rank 0 names the new checkpoint the latest before the others have written their
#     parts, so a kill leaves one that cannot be read
import os
import tempfile
from pathlib import Path

import torch.distributed as dist


def train(folder, store, rank):
    for step in (1, 2):
        store.set(f"saving/{rank}", str(step))
        (folder / f"step{step}-rank{rank}").write_text("weights")
        if rank == 0:
            (folder / "latest.new").write_text(str(step))
            os.replace(folder / "latest.new", folder / "latest")
        dist.barrier()


def check(folder, world):
    if (folder / "latest").exists():
        step = (folder / "latest").read_text()
        missing = [r for r in range(world) if not (folder / f"step{step}-rank{r}").exists()]
        assert not missing, f"step {step} is the latest without the parts of {missing}"


def main():
    folder = None
    try:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        rank, world = dist.get_rank(), dist.get_world_size()
        if rank == 0:
            store.set("folder", tempfile.mkdtemp(prefix="torn_", dir="."))
        folder = Path(store.get("folder").decode())
        train(folder, store, rank)
    except RuntimeError as error:
        print("a rank was lost:", type(error).__name__)
    if folder:
        check(folder, world)


if __name__ == "__main__":
    main()
