"""A restart is part of a run that is explored: its orders are explored with it, and a token
repeats them."""

from __future__ import annotations

import shlex

import pytest

from phalanx.cli.main import main

STALE = """
import os
import torch.distributed as dist

dist.init_process_group("gloo")
rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
came = store.add("came", 1)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if came == 3 and rank == 2:
        raise ValueError("lost batch")
else:
    if came == 3:  # never again: the store of torchrun's agent counts on
        store.set("leader", str(rank))
    store.get("leader")
dist.barrier()
"""


@pytest.fixture
def explore(tmp_path, capsys, monkeypatch):
    (tmp_path / "train.py").write_text(STALE)
    monkeypatch.chdir(tmp_path)

    def phalanx(line: str) -> tuple[int, str]:
        status = main(["explore", *shlex.split(line)])
        return status, capsys.readouterr().out

    return phalanx


def test_all_orders_of_all_attempts_are_explored(explore) -> None:
    line = "-n 3 --max-restarts 1 --strategy exhaustive --store none -q train.py"
    status, out = explore(line)
    assert status == 3
    # Two orders in which rank 2 comes last, each with six after the restart; four others.
    summary = "train.py on 3 ranks with this input explored: 12 end in a deadlock\n"
    assert out.startswith(f"all 16 behaviours of {summary}")
    assert 'no rank can set "leader"' in out


def test_a_token_repeats_a_run_with_its_restart(explore) -> None:
    _, out = explore("-n 3 --max-restarts 1 --store none -q train.py")
    replay = next(line for line in out.splitlines() if line.startswith("  replay "))
    words = shlex.split(replay)[3:]
    status, again = explore(shlex.join(words))
    assert status == 3
    assert 'no rank can set "leader"' in again
