"""Check what travels to processes, and the torchrun engine, on a machine with a GPU:
`python tests/device/check_travelling.py` with `src` on PYTHONPATH; needs nothing but torch.
Not collected by pytest.

Tensors of a GPU go by value, into memory of the rank's own; cloudpickle may be missing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
import time

import torch
import torch.distributed as dist

import phalanx

GLOO = {"engine": "processes", "backend": "gloo", "timeout": 120.0}

SCRIPT = """
import sys, torch, torch.distributed as dist
device = torch.device(sys.argv[1])
dist.init_process_group(sys.argv[2])
t = torch.full((4,), 1.0 + dist.get_rank(), device=device)
dist.all_reduce(t)
print("sum", t[0].item(), t.device)
if sys.argv[3] == "mismatch":
    if dist.get_rank() == 1:
        dist.barrier()
    else:
        dist.all_reduce(t)
dist.destroy_process_group()
"""


def add_rank(tensor: torch.Tensor) -> tuple[str, float, torch.Tensor]:
    tensor.add_(1.0 + dist.get_rank())
    torch.cuda.synchronize()
    dist.barrier()
    return str(tensor.device), tensor[0].item(), tensor


def seconds(tensor: torch.Tensor) -> float:
    return time.time()


def check_tensors() -> None:
    for size in (10, 1 << 20):
        for device in ("cpu", "cuda"):
            sent = torch.zeros(size, device=device)
            found = phalanx.run(add_rank, sent, ranks=2, **GLOO)
            assert [each[:2] for each in found] == [(str(sent.device), 1.0 + r) for r in (0, 1)]
            assert [each[2].sum().item() / size for each in found] == [1.0, 2.0]
            assert {each[2].device for each in found} == {sent.device}
            assert sent.sum().item() == 0.0
            print(f"{device}, {size} elements: each rank has its own")
    for device in ("cpu", "cuda"):
        big = torch.ones(1 << 26, device=device)
        with phalanx.World(ranks=4, **GLOO) as world:
            world.run(dist.get_rank)
            world.run(seconds, torch.ones(1, device=device))
            start = time.time()
            world.run(seconds, big)
            print(f"256 MiB on {device} to 4 ranks: {time.time() - start:.3f} s")


def check_functions() -> None:
    try:
        found = phalanx.run(lambda: dist.get_rank(), ranks=2, **GLOO)
    except phalanx.UsageError as error:
        assert importlib.util.find_spec("cloudpickle") is None
        assert str(error).endswith("pip install cloudpickle"), error
        print("without cloudpickle:", error)
    else:
        assert found == [0, 1]


def check_torchrun(folder: str) -> None:
    script = os.path.join(folder, "script.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(textwrap.dedent(SCRIPT))
    gpus = torch.cuda.device_count()
    for ranks, words, status in (
        (2, "cpu gloo well", 0),
        (2, "cuda:0 gloo well", 0),
        (2, "cuda:0 gloo mismatch", 3),
        (gpus, "cuda nccl well", 0),
    ):
        line = [
            sys.executable,
            "-m",
            "phalanx",
            "run",
            "--engine",
            "torchrun",
            "-n",
            str(ranks),
        ]
        start = time.perf_counter()
        done = subprocess.run(
            [*line, script, *words.split()],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        print(f"torchrun, {ranks} ranks, {words}: {time.perf_counter() - start:.1f} s")
        print(textwrap.indent(done.stdout + done.stderr[:400], "    "))


def main() -> int:
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    check_tensors()
    check_functions()
    with tempfile.TemporaryDirectory() as folder:
        check_torchrun(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
