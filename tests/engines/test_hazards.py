"""Programs that pass on Gloo, and what `--profile nccl` says about them; and such as it must
have nothing against.

PHALANX_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.backend.profiles import TensorUse
from phalanx.backend.profiles.second_opinion import second_opinion
from phalanx.backend.session import context_here
from phalanx.cli.main import main
from tests.support import assert_silent

FOLDER = Path(__file__).parent
PROGRAMS = sorted((FOLDER / "nccl_programs").glob("*.py"))
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


@pytest.fixture
def report(monkeypatch, capsys):
    monkeypatch.chdir(FOLDER / "nccl_programs")
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(program: Path, *options: str, status: int = 3) -> str:
        assert main(["run", "--no-record", "-n", "4", *options, program.name]) == status
        out, err = capsys.readouterr()
        assert out == ""
        told, _, closing = err.rpartition("phalanx: ")
        assert "checked: " in closing
        return told

    return run


@each_program
def test_the_report_is_that_of_the_golden_file(report, program: Path) -> None:
    golden = FOLDER / "nccl_golden" / f"{program.stem}.txt"
    text = report(program, "--profile", "nccl")
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="ascii")
    assert text == golden.read_text(encoding="ascii")
    first, *lines = text.splitlines()
    assert max(map(len, lines)) <= 88 and len(first) <= 92


@each_program
def test_the_verdict_is_the_same_under_other_schedules(report, program: Path) -> None:
    golden = (FOLDER / "nccl_golden" / f"{program.stem}.txt").read_text(encoding="ascii")
    for seed in range(1, 4):
        text = report(program, "--profile", "nccl", "--seed", str(seed))
        assert text.replace(f" --seed {seed}", "") == golden, f"seed {seed}"


@each_program
def test_without_the_profile_they_pass(report, program: Path) -> None:
    assert "hazard" not in report(program, status=0)


def test_no_golden_file_is_left_over() -> None:
    names = {path.stem for path in (FOLDER / "nccl_golden").glob("*.txt")}
    assert names == {path.stem for path in PROGRAMS}


# -- what must stay silent -----------------------------------------------------------------


def batched_ring() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.full((2,), float(rank)), torch.empty(2)
    for _ in range(3):
        messages = [
            dist.P2POp(dist.irecv, theirs, (rank - 1) % size),
            dist.P2POp(dist.isend, mine, (rank + 1) % size),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        mine = theirs.clone()


def even_ranks_send_first() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.ones(2), torch.empty(2)
    if rank % 2 == 0:
        dist.send(mine, (rank + 1) % size)
        dist.recv(theirs, (rank - 1) % size)
    else:
        dist.recv(theirs, (rank - 1) % size)
        dist.send(mine, (rank + 1) % size)


def pipeline_of_single_messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = []
    for _ in range(3):
        tensor = torch.ones(2)
        if rank > 0:
            dist.recv(tensor, rank - 1)
        if rank < size - 1:
            sent.append(dist.isend(tensor, rank + 1))
    for work in sent:
        work.wait()
    dist.barrier()


def two_groups_in_one_order() -> None:
    first, second = dist.new_group(), dist.new_group()
    a, b = torch.ones(2), torch.ones(3)
    for _ in range(3):
        works = [
            dist.all_reduce(a, group=first, async_op=True),
            dist.all_reduce(b, group=second, async_op=True),
        ]
        for work in works[:: 1 if dist.get_rank() else -1]:
            work.wait()


def disjoint_groups() -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[dist.get_rank() // 2]
    for _ in range(1 + dist.get_rank() // 2):
        dist.all_reduce(torch.ones(2), group=mine)
    dist.barrier()


def rows_and_columns() -> None:
    rank = dist.get_rank()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=rows[rank // 2])
        dist.all_reduce(torch.ones(2), group=columns[rank % 2])


def batch_of_some_after_a_collective() -> None:
    dist.barrier()
    rank = dist.get_rank()
    if rank < 2:
        what = dist.isend if rank else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(what, torch.ones(2), 1 - rank)]):
            work.wait()


def a_thread_with_a_group_of_its_own() -> None:
    own = dist.new_group()

    def reduce_often() -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(2), group=own)

    thread = threading.Thread(target=reduce_often)
    if dist.get_rank() % 2:
        thread.start()
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    if dist.get_rank() % 2 == 0:
        thread.start()
    thread.join()


def data_parallel() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()


def objects() -> None:
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    rank = dist.get_rank()
    if rank == 0:
        dist.send_object_list(["hello"], dst=1)
    elif rank == 1:
        dist.recv_object_list([None], src=0)


def a_receive_that_was_given_up() -> None:
    rank = dist.get_rank()
    if rank == 1:
        with pytest.raises(RuntimeError, match="Timed out"):
            dist.irecv(torch.ones(2), 0).wait(timedelta(milliseconds=10))
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        dist.recv(torch.ones(2), 0)


def single_messages_after_a_batch_that_was_refused() -> None:
    dist.barrier()
    rank = dist.get_rank()
    if rank == 0:
        refused = torch.ones(4, 4)[:, :2]
        messages = [dist.P2POp(dist.isend, tensor, 1) for tensor in (refused, torch.ones(2))]
        with pytest.raises(ValueError, match="contiguous"):
            dist.batch_isend_irecv(messages)
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        dist.recv(torch.ones(2), 0)


def callbacks_that_communicate() -> None:
    """They run where their rank waits, which is not at the same place on every rank."""
    other = dist.new_group()
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        dist.recv(torch.ones(1), 0)
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    future = future.then(lambda done: dist.all_reduce(torch.ones(1)))
    if rank > 1:
        dist.get_global_rank(dist.group.WORLD, rank)
    elif rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    dist.all_reduce(torch.ones(1), group=other)
    future.wait()


SILENT = [
    batched_ring,
    even_ranks_send_first,
    pipeline_of_single_messages,
    two_groups_in_one_order,
    disjoint_groups,
    rows_and_columns,
    batch_of_some_after_a_collective,
    a_thread_with_a_group_of_its_own,
    data_parallel,
    objects,
    a_receive_that_was_given_up,
    single_messages_after_a_batch_that_was_refused,
    callbacks_that_communicate,
]


@pytest.mark.parametrize("program", SILENT, ids=lambda program: program.__name__)
def test_right_programs_stay_silent(program: Callable[[], None]) -> None:
    assert_silent(program, ranks=4, profile="nccl", seeds=range(3))


# -- severity, choice, repetition ----------------------------------------------------------


def exchange() -> None:
    peer = 1 - dist.get_rank()
    works = [dist.isend(torch.ones(2), peer), dist.irecv(torch.ones(2), peer)]
    for work in works:
        work.wait()


def test_under_the_profile_it_is_an_error() -> None:
    with pytest.raises(phalanx.BackendHazardError, match="send to each other") as caught:
        phalanx.run(exchange, ranks=2, profile="nccl")
    verdict = caught.value.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.severity, verdict.ranks) == (
        "backend-hazard",
        "error",
        (0, 1),
    )


def test_the_kind_can_be_left_out() -> None:
    assert_silent(exchange, profile="nccl", checks="all,-backend-hazard")


def barriers_in_opposite_orders(backend: str) -> None:
    groups = [dist.new_group(backend=backend), dist.new_group(backend=backend)]
    works = [
        dist.barrier(group=group, async_op=True)
        for group in groups[:: 1 if dist.get_rank() else -1]
    ]
    for work in works:
        work.wait()


def test_without_a_profile_groups_of_nccl_get_a_warning() -> None:
    with pytest.warns(phalanx.PhalanxWarning, match="in opposite orders; NCCL may hang"):
        phalanx.run(barriers_in_opposite_orders, "nccl", ranks=2, backend="nccl")


def test_groups_of_gloo_in_a_program_for_nccl_are_gloos() -> None:
    program = partial(barriers_in_opposite_orders, "gloo")
    assert_silent(program, backend="nccl", profile="nccl")


def test_a_world_tells_of_a_hazard_once() -> None:
    with phalanx.World(ranks=2, profile="nccl") as world:
        with pytest.raises(phalanx.BackendHazardError):
            world.run(exchange)
        world.run(two_groups_in_one_order)
        assert len(world.findings) == 1


def test_all_hazards_of_a_run_are_found() -> None:
    def several() -> None:
        exchange()
        dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.BAND)
        dist.all_reduce(torch.ones(4, 4).t())
        dist.monitored_barrier()

    with phalanx.World(ranks=2, profile="nccl") as world:
        with pytest.raises(phalanx.BackendHazardError):
            world.run(several)
        found = [each.headline for each in world.findings]
    assert found == [
        "ranks 0, 1 call all_reduce, which NCCL refuses: NCCL has no BAND",
        "ranks 0, 1 call all_reduce, which NCCL refuses: NCCL takes contiguous tensors only",
        "ranks 0, 1 send to each other first, unbatched; NCCL may hang",
        "ranks 0, 1 call monitored_barrier, which NCCL has not",
    ]


def test_the_profile_of_gloo_judges_what_another_backend_takes() -> None:
    def send_from_a_gpu() -> None:
        context = context_here()
        assert context is not None
        ask = second_opinion(context.session)
        assert ask is not None
        assert ask(
            TensorUse("all_reduce", torch.float32, "SUM", device="cuda"), torch.ones(1), None
        )
        assert not ask(TensorUse("send", torch.float32, device="cuda"), torch.ones(1), None)

    with pytest.raises(phalanx.BackendHazardError, match="call send, which Gloo would die of"):
        phalanx.run(send_from_a_gpu, ranks=2, profile="gloo")


def test_ranks_that_both_send_first_are_a_deadlock_as_on_gloo() -> None:
    def send_first() -> None:
        peer = 1 - dist.get_rank()
        dist.send(torch.ones(2), peer)
        dist.recv(torch.ones(2), peer)

    for profile in (None, "nccl"):
        with pytest.raises(phalanx.DeadlockError):
            phalanx.run(send_first, ranks=2, profile=profile)
