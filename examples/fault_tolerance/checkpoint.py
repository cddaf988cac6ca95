"""Save with torch.distributed.checkpoint so that a kill leaves a whole checkpoint.

    phalanx run -n 2 --max-restarts 3 examples/fault_tolerance/checkpoint.py FOLDER [in-place]

Each rank has a shard of its own, and after a restart all shards must be of one step. With
"in-place" each checkpoint is written over the one before: a rank that is killed while the
others have written leaves shards of two steps, and nobody notices when they are loaded.
Without it each one has a folder of its own, which counts once rank 0 has written its name
into a marker, after all ranks have saved. Find the kill that does it:

    phalanx explore -n 2 --max-restarts 3 --faults kill \\
        examples/fault_tolerance/checkpoint.py FOLDER in-place
"""

import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

STEPS = 3


class Writer(dcp.FileSystemWriter):
    """Ranks write their shards one after the other, to spare the disk."""

    def write_data(self, plan, planner):
        for turn in range(dist.get_world_size()):
            if turn == dist.get_rank():
                written = super().write_data(plan, planner)
            dist.barrier()
        return written


class Checkpoints:
    """Of one training, in one folder."""

    def __init__(self, folder: str, *, in_place: bool) -> None:
        self._folder = folder
        self._in_place = in_place
        self._marker = os.path.join(folder, "latest")

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder)

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        name = "only" if self._in_place else f"step-{step}"
        dcp.save(state, storage_writer=Writer(os.path.join(self._folder, name)))
        if dist.get_rank() == 0 and not self._in_place:
            self._mark(name)
        dist.barrier()

    def _mark(self, name: str) -> None:
        before = self._marked()
        with open(f"{self._marker}.new", "w") as file:
            file.write(name)
        os.replace(f"{self._marker}.new", self._marker)
        if before not in (None, name):
            shutil.rmtree(os.path.join(self._folder, str(before)))

    def _marked(self) -> str | None:
        if not os.path.exists(self._marker):
            return None
        with open(self._marker) as file:
            return file.read()

    def load(self, state: dict[str, torch.Tensor]) -> bool:
        """Fill the state from the last checkpoint; whether there was one. Rank 0 says which."""
        found: list[str | None] = [None]
        if dist.get_rank() == 0:
            found = [self._marked()]
            if self._in_place and os.path.exists(f"{self._folder}/only/.metadata"):
                found = ["only"]
        dist.broadcast_object_list(found)
        if found[0] is None:
            return False
        dcp.load(state, checkpoint_id=os.path.join(self._folder, found[0]))
        return True


def main(folder: str, *words: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoints = Checkpoints(folder, in_place="in-place" in words)
    if rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        checkpoints.clear()
    dist.barrier()
    state = {f"shard {rank}": torch.zeros(4)}
    (shard,) = state.values()
    if checkpoints.load(state):
        steps = [None] * dist.get_world_size()
        dist.all_gather_object(steps, shard[0].item())
        assert len(set(steps)) == 1, f"the shards of the checkpoint are of steps {steps}"
        print(f"goes on from step {shard[0].item():g}")
    while shard[0] < STEPS:
        shard += 1
        checkpoints.save(int(shard[0]), state)
    print(f"trained {STEPS} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
