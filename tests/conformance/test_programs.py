"""Whole programs for what no single case can show: a debugger, processes of a program's own,
the levels of torch's loggers.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import phalanx
from tests.forked_programs import run_forked

DEBUGGED = """\
import torch.distributed as dist

dist.init_process_group("gloo")
where = dist.get_rank() * 10 + 7
dist.breakpoint(rank=1)
print("went on as", dist.get_rank())
dist.destroy_process_group()
"""

SPAWNING = """\
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def child(index, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=index, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"child {index} of 2 has {total.item()}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        mp.spawn(child, args=(sys.argv[1],), nprocs=2)
    dist.barrier()
    print("after the children", dist.get_rank())
    dist.destroy_process_group()
"""


def run_script(
    folder: Path, source: str, *arguments: str, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(source)
    command = [sys.executable, "-m", "phalanx", "run", "-n", "2", str(path), *arguments]
    return run_forked(command, input=typed, timeout=50)


def test_the_ranks_wait_for_the_one_that_debugs(tmp_path: Path) -> None:
    ended = run_script(tmp_path, DEBUGGED, typed="up\np 'it is', where\nc\n")
    assert ended.returncode == 0, ended.stderr
    assert "('it is', 17)" in ended.stdout
    before, _, after = ended.stdout.partition("('it is', 17)")
    assert "went on" not in before
    assert "went on as 0" in after and "went on as 1" in after


def test_a_rank_may_spawn_processes(tmp_path: Path) -> None:
    ended = run_script(tmp_path, SPAWNING, str(tmp_path / "meeting"))
    assert ended.returncode == 0, ended.stderr
    for line in ("child 0 of 2 has 2.0", "child 1 of 2 has 2.0", "after the children 1"):
        assert line in ended.stdout


@pytest.mark.parametrize(("level", "heard"), [(logging.DEBUG, True), (logging.ERROR, False)])
def test_log_levels_of_the_package_are_kept(
    level: int, heard: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def program() -> int:
        dist.new_group([0])
        return logging.getLogger("torch.distributed.distributed_c10d").getEffectiveLevel()

    caplog.set_level(level, logger="torch.distributed")
    caplog.set_level(level, logger="torch.distributed.distributed_c10d")
    assert phalanx.run(program, ranks=2) == [level, level]
    records = [r for r in caplog.records if r.name.startswith("torch.distributed")]
    assert bool(records) == heard
