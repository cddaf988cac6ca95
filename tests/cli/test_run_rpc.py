"""`torch.distributed.rpc`, which has one agent in each process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import phalanx
from tests.forked_programs import run_forked

RPC = """
import os
import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

def double(x):
    return 2 * x

def work(rank, size):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29987")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    if rank == 0:
        print("got", rpc.rpc_sync("worker1", double, args=(torch.ones(2),)).tolist())
    rpc.shutdown()
"""
BY_RANK = RPC + 'work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))\n'
SPAWNING = RPC + 'if __name__ == "__main__":\n    mp.spawn(work, (2,), nprocs=2)\n'
REFUSAL = (
    "phalanx: torch.distributed.rpc has one agent in each process, and here ranks are threads "
    "of one process: take --engine processes"
)


def run(folder: Path, text: str, *options: str) -> tuple[int, str, str]:
    (folder / "program.py").write_text(text)
    command = [sys.executable, "-m", "phalanx", "run", *options, "program.py"]
    done = run_forked(command, cwd=folder, timeout=55)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.programs
@pytest.mark.parametrize(("text", "options"), [(BY_RANK, ("-n", "2")), (SPAWNING, ())])
def test_on_threads_one_sentence_says_which_engine_has_it(
    tmp_path: Path, text: str, options: tuple[str, ...]
) -> None:
    status, _, said = run(tmp_path, text, *options)
    assert status == 2 and said.splitlines()[-1] == REFUSAL


@pytest.mark.programs
@pytest.mark.parametrize(("text", "options"), [(BY_RANK, ("-n", "2")), (SPAWNING, ())])
def test_on_processes_it_works_without_a_group_of_the_program(
    tmp_path: Path, text: str, options: tuple[str, ...]
) -> None:
    status, out, said = run(tmp_path, text, *options, "--engine", "processes")
    assert status == 0, said
    assert out.split(maxsplit=1)[-1].strip().removeprefix("got ") == "[2.0, 2.0]"
    assert "Is this the right" not in said


@pytest.mark.parametrize("size", [None, 2])
def test_a_function_on_threads_is_told_the_same(size: int | None) -> None:
    rpc = pytest.importorskip("torch.distributed.rpc")

    def program() -> None:
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(program, ranks=2, init=False)
    assert "engine='processes'" in str(caught.value.__cause__)
