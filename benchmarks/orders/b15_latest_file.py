# ranks: 2
# decides: order
# kind: rank-failed
# lines: 21,33-34
# minimum: 0
# report: https://github.com/KempnerInstitute/KempnerForge/issues/49
# what: saving returns on rank 1 before rank 0 has written the name of the latest
#     checkpoint, which rank 1 then reads
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


def save(folder, step):
    done = torch.ones(1)
    dist.all_reduce(done)
    if dist.get_rank() == 0:
        (folder / "latest").write_text(f"step {step}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="latest_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    folder = Path(box[0])
    try:
        save(folder, step=1)
        if rank == 1:
            found = [each.read_text() for each in folder.iterdir()]
            assert found == ["step 1"], f"rank 1 finds {found}"
        dist.barrier()
    finally:
        if rank == 0:
            shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
