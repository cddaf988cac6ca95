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


KILLED = """
import os
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
done = store.add("done", 0)
store.add("done", 1)
dist.barrier()
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", dist.get_rank())
"""


def test_a_kill_is_a_failure_where_ranks_may_start_again(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "train.py").write_text(KILLED)
    monkeypatch.chdir(tmp_path)
    line = "run -n 2 --no-record --max-restarts 1 --faults 'kill(rank=1, at=store(2))' train.py"
    assert main(shlex.split(line)) == 0
    out, err = capsys.readouterr()
    assert "attempt 1 of 0" in out
    assert "attempt 0" not in out
    assert "rank 1 died of SIGKILL" in err
    assert "rank 1 was killed at its store operation 2, train.py:8" in err
    assert "phalanx: restart 1 of at most 1: all 2 ranks start again" in err
    assert "phalanx: happened: kill(rank=1, at=store(2))" in err


def test_without_restarts_the_survivors_go_on_and_what_did_not_happen_is_said(
    tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "train.py").write_text(KILLED.replace("dist.barrier()", ""))
    monkeypatch.chdir(tmp_path)
    plan = "kill(rank=1, at=store(2)), delay(rank=0, seconds=1, at=call(9))"
    assert main(["run", "-n", "2", "--no-record", "--faults", plan, "train.py"]) == 0
    out, err = capsys.readouterr()
    assert "attempt 0 of 0" in out
    assert "of 1" not in out
    assert "phalanx: happened: kill(rank=1, at=store(2))\n" in err
    never = "phalanx: never happened: delay(rank=0, seconds=1, at=call(9));"
    assert f"{never} the run did not come there\n" in err
