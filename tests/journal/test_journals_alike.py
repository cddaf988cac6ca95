"""One program has one journal, whichever engine runs it: the same events, lines and fields."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.journal.events import Posted, WaitBegan, WaitEnded
from phalanx.journal.reader import Journal
from tests.forked_programs import run_forked

ONCE = ("met", "completed")
"""Of a slot or a message there is one, written by whoever comes last."""
RANKS = 3


def everything() -> None:
    rank, tensor = dist.get_rank(), torch.ones(4)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    dist.all_reduce(tensor, async_op=True).wait()
    if rank == 0:
        dist.send(tensor, 1)
        dist.isend(tensor, 1, tag=2).wait()
    elif rank == 1:
        dist.recv(tensor, 0)
        dist.irecv(tensor, 0, tag=2).wait()
    group = dist.new_group([0, 1], group_desc="pair")
    if rank < 2:
        dist.broadcast(tensor, 0, group=group)
        dist.destroy_process_group(group)
    store: Any = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("key", "value")
    store.get("key")
    dist.all_gather([torch.zeros(4) for _ in range(dist.get_world_size())], tensor)
    dist.barrier()


def touch() -> None:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    tensor.add_(1)
    work.wait()


def journal_on(engine: str) -> Journal:
    with phalanx.World(ranks=RANKS, engine=engine) as world:
        world.run(everything)
        return world.journal


def torchrun_journal(folder: Path) -> Journal:
    """By way of a script: the engine has no `World`."""
    result, script = folder / "journal", folder / "script.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "from tests.journal.test_journals_alike import everything\n"
        "dist.init_process_group('gloo')\n"
        "everything()\n"
    )
    program = f"""
import pickle
from phalanx.engines.torchrun.torchrun_start import TorchrunSettings, run_by_torchrun

journals = []

def nothing(*given):
    pass

if __name__ == "__main__":
    run_by_torchrun(TorchrunSettings(
        launcher_options=["--standalone", "--nproc-per-node={RANKS}"],
        program=["script", {str(script)!r}],
        on_world=nothing, on_output=nothing, on_notice=nothing, on_tick=nothing,
        on_journal=journals.append,
        environ={{"PYTHONPATH": {str(Path(__file__).parents[2])!r}}},
    ))
    with open({str(result)!r}, "wb") as file:
        pickle.dump(journals[-1].reader(), file)
"""
    done = run_forked([sys.executable, "-c", program], timeout=50)
    assert done.returncode == 0, done.stderr
    with result.open("rb") as file:
        journal: Journal = pickle.load(file)
    return journal


def line_of(event: Any) -> int | None:
    site = event.site
    return site.line if site is not None and site.function == "everything" else None


def of_ranks(journal: Journal) -> Counter[Any]:
    """How many of each kind, by rank and line. Who waits and who comes last is luck."""
    left_out = (*ONCE, "wait-began", "wait-ended", "noted")
    return Counter(
        (event.kind, event.rank, line_of(event))
        for event in journal
        if event.kind not in left_out
    )


def calls_of(journal: Journal) -> set[Any]:
    return {
        (
            *(event.rank, event.thread, event.group.title, event.name, event.serial),
            *(event.member, event.number, event.root, event.peer, event.tag),
            *(event.reduce_op, event.asynchronous, event.batch, event.device),
            *map(str, event.tensors),
        )
        for event in journal
        if isinstance(event, Posted)
    }


def check_alike(found: Journal, expected: Journal) -> None:
    assert of_ranks(found) == of_ranks(expected)
    assert calls_of(found) == calls_of(expected)
    for kind in ONCE:
        ours, theirs = ([*each.filter(kind=kind)] for each in (found, expected))
        assert {(e.group.title, e.number, e.calls) for e in ours} == {
            (e.group.title, e.number, e.calls) for e in theirs
        }
        assert len(ours) == len(theirs)
    check_times(found)


def check_times(journal: Journal) -> None:
    """Nothing ends before it begins, and what began to wait has gone on."""
    times = [event.time for event in journal]
    assert times == sorted(times) and journal.dropped == 0
    began: dict[Any, Any] = {}
    for event in journal.filter(kind=("posted", "wait-began", "wait-ended")):
        if isinstance(event, WaitEnded):
            assert event.met and event.time >= began.pop(event.call).time
        else:
            began[event.call] = event
    assert not any(isinstance(event, WaitBegan) for event in began.values())
    ended = sum(event.kind == "wait-ended" for event in journal)
    met = [*journal.filter(kind="met")]
    blocking = {e.call for e in journal if isinstance(e, Posted) and not e.asynchronous}
    assert ended >= len(blocking) - len(met)  # all but the last to come have to wait


def test_processes_write_what_threads_write() -> None:
    check_alike(journal_on("processes"), journal_on("threads"))


def test_torchrun_writes_what_threads_write(tmp_path) -> None:
    found, expected = torchrun_journal(tmp_path), journal_on("threads")
    made = [event for event in found.filter(kind="group-made") if event.default]
    assert len(made) == RANKS and all(event.by_program for event in made)
    check_alike(found, expected)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_touched_buffer_is_noted(engine: str) -> None:
    with pytest.raises(phalanx.PhalanxError) as caught:
        phalanx.run(touch, ranks=2, engine=engine)
    event = next(iter(caught.value.journal.filter(kind="buffer-touched")))
    assert (event.how, event.site.function) == ("written", "touch")
    call = caught.value.journal.call(event.call)
    assert (call.name, call.asynchronous) == ("all_reduce", True)


def fail_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("no data")
    dist.barrier()


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_ranks_end_alike(engine: str) -> None:
    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(fail_one, ranks=2, engine=engine)
    ends = {(e.rank, e.how, e.error) for e in caught.value.journal.filter(kind="rank-ended")}
    assert ends == {(0, "stopped", ""), (1, "failed", "ValueError")}
