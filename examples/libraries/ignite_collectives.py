"""pytorch-ignite's own layer over torch.distributed: `ignite.distributed`.

    torchrun --nproc-per-node 2 examples/libraries/ignite_collectives.py
    phalanx run -n 2 examples/libraries/ignite_collectives.py

`idist.Parallel` opens the group; the collectives take numbers, strings and tensors of different
shapes; decorators and contexts let one rank go first or alone.
"""

import tempfile
from pathlib import Path

import ignite.distributed as idist
import torch


def show(label: str, value: object) -> None:
    print(f"rank {idist.get_rank()} {label}: {value}")


def where() -> None:
    show("backend", (idist.backend(), idist.model_name(), str(idist.device())))
    show("place", (idist.get_rank(), idist.get_local_rank(), idist.get_node_rank()))
    show("sizes", (idist.get_world_size(), idist.get_nproc_per_node(), idist.get_nnodes()))


def collectives() -> None:
    rank, world = idist.get_rank(), idist.get_world_size()
    show("sum", idist.all_reduce(rank + 0.5))
    show("max", idist.all_reduce(torch.tensor([rank, -rank]), op="MAX").tolist())
    show("numbers", idist.all_gather(float(rank)))
    show("texts", idist.all_gather(f"text {rank}"))
    show("objects", idist.all_gather({"rank": rank, "squares": [i * i for i in range(rank)]}))
    show("tensor", idist.all_gather(torch.full((1, 2), rank)).tolist())
    shapes = [(r + 1, 2) for r in range(world)]
    ragged = idist.all_gather_tensors_with_shapes(torch.full((rank + 1, 2), rank), shapes)
    show("ragged", [(*part.shape, int(part.sum())) for part in ragged])
    show("from the last", idist.broadcast(rank * 1.5, src=world - 1))
    show("a text from the last", idist.broadcast(f"text {rank}", src=world - 1))
    source = torch.arange(3) + 10 if rank == 0 else None
    show("to those with nothing", idist.broadcast(source, src=0, safe_mode=True).tolist())


def groups() -> None:
    world = idist.get_world_size()
    low = idist.new_group(list(range(world // 2)))
    high = idist.new_group(list(range(world // 2, world)))
    mine = low if idist.get_rank() < world // 2 else high
    show("sum of its half", idist.all_reduce(idist.get_rank() + 1, group=mine))


@idist.one_rank_only(rank=0, with_barrier=True)
def write(path: Path, text: str) -> None:
    path.write_text(text)


def one_rank(folder: Path) -> None:
    path = folder / "written"
    write(path, f"by rank {idist.get_rank()}")
    show("read", path.read_text())
    idist.barrier()
    with idist.one_rank_first(rank=idist.get_world_size() - 1):
        first = not (folder / "first").exists()
        (folder / "first").touch()
    show("came first", first)


def work(local_rank: int, folder: Path, *, label: str) -> None:
    show("label", (local_rank, label))
    where()
    collectives()
    groups()
    one_rank(folder)


def main() -> None:
    with idist.Parallel(backend="gloo") as parallel, tempfile.TemporaryDirectory() as own:
        folder = Path(idist.broadcast(own, src=0))
        parallel.run(work, folder, label="collectives")
        idist.barrier()
    print("afterwards", idist.model_name(), idist.get_world_size())


if __name__ == "__main__":
    main()
