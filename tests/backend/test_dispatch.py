"""What watches operations sees ours as it sees Gloo's: dispatch modes, profilers, traces."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

import phalanx
from tests.backend.direct_programs import LIST_TO_ALL
from tests.forked_programs import run_forked

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of torch, about names
    # torch 2.11's, of every profiler's first cycle
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"),
]


GLOO_ENDS = 0.2
"""Seconds after which Gloo's own threads have ended the events of what was waited for; one
that has not is missing from its records."""


def every_operation() -> torch.Tensor:
    """Each once, and some that reach the group from C++."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((3, 4), float(rank))
    pieces = [torch.zeros(3, 4) for _ in range(size)]
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    dist.broadcast(tensor, 0)
    dist.reduce(tensor, 0)
    dist.all_gather(pieces, tensor)
    dist.all_gather_into_tensor(torch.zeros(3 * size, 4), tensor)
    dist.gather(tensor, pieces if rank == 0 else None)
    dist.scatter(tensor, pieces if rank == 0 else None)
    dist.reduce_scatter(tensor, pieces)
    dist.reduce_scatter_tensor(tensor, torch.ones(3 * size, 4))
    dist.all_to_all_single(torch.zeros(4 * size), torch.ones(4 * size))
    if LIST_TO_ALL:
        dist.all_to_all([torch.zeros(4) for _ in range(size)], [torch.ones(4)] * size)
    dist.barrier()
    dist.all_reduce_coalesced([tensor, tensor.clone()])
    dist.all_gather_coalesced([[torch.zeros(3, 4)] for _ in range(size)], [tensor])
    if rank == 0:
        dist.send(tensor, 1)
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        dist.recv(tensor)
    dist.all_gather_object([None] * size, rank)
    summed: Any = functional.all_reduce(tensor, "sum", dist.group.WORLD)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(summed.detach().requires_grad_()).sum().backward()
    return tensor


def counted() -> dict[str, int]:
    with CommDebugMode() as mode:
        every_operation()
    return {str(op): count for op, count in mode.get_comm_counts().items()}


def profiled() -> list[tuple[str, list[list[int]], bool, int]]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        every_operation()
        time.sleep(GLOO_ENDS)
    return sorted(
        (event.name, event.input_shapes, event.is_async, event.scope)
        for event in profiler.events()
        if event.name.startswith(("gloo:", "c10d::", "_c10d"))
    )


def traced(folder: str) -> list[str]:
    path = Path(folder, f"trace-{dist.get_rank()}.json")
    _gone = weakref.proxy(set())  # which raises whatever it is asked for
    observer = ExecutionTraceObserver().register_callback(str(path))
    with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer):
        every_operation()
        time.sleep(GLOO_ENDS)
    observer.unregister_callback()
    names = [node["name"] for node in json.loads(path.read_text())["nodes"]]
    return sorted(name for name in names if name.startswith(("gloo:", "c10d::", "_c10d")))


@pytest.mark.programs
def test_comm_debug_mode_counts_what_it_counts_on_gloo() -> None:
    ours = phalanx.run(counted, ranks=2, backend="gloo")
    theirs = phalanx.run(counted, ranks=2, engine="processes", backend="gloo")
    assert ours == theirs
    assert len(ours[0]) > 10


@pytest.mark.slow  # by luck: see GLOO_ENDS
@pytest.mark.programs
def test_all_ranks_profile_at_once_and_see_what_they_see_on_gloo() -> None:
    ours = phalanx.run(profiled, ranks=2, backend="gloo")
    theirs = phalanx.run(profiled, ranks=2, engine="processes", backend="gloo")
    assert ours == theirs
    assert len(ours[0]) > 40


@pytest.mark.slow  # by luck: see GLOO_ENDS
@pytest.mark.programs
def test_all_ranks_trace_at_once_and_get_what_they_get_on_gloo(tmp_path: Path) -> None:
    ours = phalanx.run(traced, str(tmp_path), ranks=2, backend="gloo")
    theirs = phalanx.run(traced, str(tmp_path), ranks=2, engine="processes", backend="gloo")
    assert ours == theirs
    assert len(ours[0]) > 40


def test_results_are_the_same_while_watched() -> None:
    def watched() -> torch.Tensor:
        with CommDebugMode():
            return every_operation()

    plain = phalanx.run(every_operation, ranks=3, backend="gloo")
    for one, other in zip(plain, phalanx.run(watched, ranks=3, backend="gloo"), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_only_the_rank_that_watches_is_watched() -> None:
    def body() -> int:
        tensor = torch.ones(2)
        if dist.get_rank() == 1:
            with CommDebugMode() as mode:
                dist.all_reduce(tensor)
            return mode.get_total_counts()
        dist.all_reduce(tensor)
        return int(tensor[0])

    assert phalanx.run(body, ranks=3) == [3, 1, 3]


def test_a_mode_sees_the_arguments_and_the_factor_arrives() -> None:
    """PREMUL_SUM's factor is not among the operator's arguments."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def body() -> list[float]:
        tensor = torch.ones(2)
        with Watch():
            dist.broadcast(tensor, group_src=1)
        dist.barrier()
        return tensor.tolist()

    assert phalanx.run(body, ranks=2) == [[1.0, 1.0]] * 2
    assert seen == ["c10d.broadcast_.default"] * 2


def test_errors_pass_through_the_dispatcher() -> None:
    def body() -> str:
        with CommDebugMode(), pytest.raises(RuntimeError, match="rank 7") as caught:
            dist.group.WORLD.broadcast(torch.ones(2), 7)  # type: ignore[union-attr]
        return type(caught.value).__name__

    assert phalanx.run(body, ranks=2) == ["InvalidCallError"] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_profilers_of_ranks_overlap_in_any_order(first: int) -> None:
    def body() -> tuple[int, int]:
        rank = dist.get_rank()
        profiler = profile(activities=[ProfilerActivity.CPU])
        if rank == first:
            profiler.start()
        dist.barrier()
        if rank != first:
            profiler.start()
        with record_function(f"mine {rank}"):
            dist.all_reduce(torch.ones(2))
        if rank != first:
            profiler.stop()
        dist.barrier()
        if rank == first:
            profiler.stop()
        names = Counter(event.name for event in profiler.events())
        return names[f"mine {rank}"], names[f"mine {1 - rank}"]

    assert phalanx.run(body, ranks=2, backend="gloo") == [(1, 0), (1, 0)]


def test_the_program_around_a_run_keeps_its_profiler() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as outer:
        torch.ones(3)
        phalanx.run(profiled, ranks=2, backend="gloo")
        torch.zeros(3)
    names = {event.name for event in outer.events()}
    assert {"aten::ones", "aten::zeros"} <= names
    assert not any(name.startswith("gloo:") for name in names)


def test_a_scheduled_profiler_on_each_rank(tmp_path: Path) -> None:
    def body() -> int:
        ready: list[int] = []
        path = tmp_path / f"{dist.get_rank()}.json"

        def keep(profiler: Any) -> None:
            profiler.export_chrome_trace(str(path))
            ready.append(len(profiler.events()))

        warnings.simplefilter("ignore")  # torch says that a new cycle forgets the last one
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
        with profile(
            activities=[ProfilerActivity.CPU], schedule=schedule, on_trace_ready=keep
        ) as profiler:
            for _ in range(8):
                dist.all_reduce(torch.ones(2))
                profiler.step()
        assert "gloo:all_reduce" in path.read_text()
        return len(ready)

    assert phalanx.run(body, ranks=3, backend="gloo") == [2, 2, 2]


def test_ranks_that_fail_while_their_profilers_warm_up_harm_nobody() -> None:
    def fail() -> None:
        profiler = profile(
            activities=[ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=0, warmup=4, active=1),
        )
        profiler.start()
        dist.barrier()
        raise ValueError("too cold")

    for _ in range(2):
        with pytest.raises(phalanx.RankFailedError, match="too cold"):
            phalanx.run(fail, ranks=2)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            torch.ones(2)
        assert any(event.name == "aten::ones" for event in profiler.events())
    assert len(phalanx.run(profiled, ranks=2, backend="gloo")[0]) > 40


def test_a_rank_that_fails_inside_its_profiler_harms_nobody() -> None:
    def body() -> None:
        with profile(activities=[ProfilerActivity.CPU]):
            dist.all_reduce(torch.ones(2))
            if dist.get_rank() == 1:
                raise ValueError("in the middle")
            dist.all_reduce(torch.ones(2))

    with pytest.raises(phalanx.RankFailedError, match="in the middle"):
        phalanx.run(body, ranks=3)
    ours = phalanx.run(profiled, ranks=2, backend="gloo")
    assert len(ours[0]) > 40


@pytest.mark.skipif(not hasattr(dist, "record_comm"), reason="torch 2.13 and later")
def test_events_take_the_name_that_record_comm_gives() -> None:
    def body() -> list[str]:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            with dist.record_comm("gradients"):
                dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(2))
        return [e.name for e in profiler.events() if e.is_async]

    assert (
        phalanx.run(body, ranks=2, backend="gloo")
        == [["gradients", *["gloo:all_reduce"] * 2]] * 2
    )


def test_nothing_stays_behind() -> None:
    module = sys.modules["torch.autograd.profiler"]
    before = vars(module)["_disable_profiler"], threading.active_count()
    phalanx.run(counted, ranks=2, backend="gloo")
    phalanx.run(profiled, ranks=2, backend="gloo")
    assert (vars(module)["_disable_profiler"], threading.active_count()) == before
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(
        "c10d::allreduce_", "BackendSelect"
    )


class Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def seen_by_a_function_mode() -> list[str]:
    group: Any = dist.group.WORLD
    tensor = torch.ones(2)
    with Watch() as mode:
        group.allreduce([tensor]).wait()
        group.broadcast([tensor]).wait()
    return mode.seen


@pytest.mark.programs
def test_function_modes_see_as_little_of_a_group_as_on_gloo() -> None:
    ours = phalanx.run(seen_by_a_function_mode, ranks=2, backend="gloo")
    theirs = phalanx.run(seen_by_a_function_mode, ranks=2, engine="processes", backend="gloo")
    assert ours == theirs


def leave_a_profiler_open() -> None:
    profile(activities=[ProfilerActivity.CPU]).start()
    if dist.get_rank() == 0:
        raise ValueError("with a profiler open")
    dist.barrier()


def trace_and_leave(folder: str) -> None:
    path = Path(folder, f"left-{dist.get_rank()}.json")
    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 1:
        raise ValueError("with a trace open")


@pytest.mark.programs
def test_what_failed_ranks_leave_open_harms_no_later_run(tmp_path: Path) -> None:
    """In an interpreter of its own: this once ended with a segmentation fault."""
    program = f"""
        import gc, sys, tempfile, warnings
        tempfile.tempdir = {str(tmp_path)!r}
        warnings.simplefilter("ignore")
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        import phalanx
        from tests.backend.test_dispatch import *

        for body in [leave_a_profiler_open] * 2:
            try:
                phalanx.run(body, ranks=2)
            except phalanx.RankFailedError as error:
                print(error.failures[0])
        for _ in range(2):
            try:
                phalanx.run(trace_and_leave, {str(tmp_path)!r}, ranks=2)
            except phalanx.RankFailedError as error:
                print(error.failures[1])
            gc.collect()
        print([len(found) > 40 for found in phalanx.run(profiled, ranks=3)])
        print([len(found) > 40 for found in phalanx.run(traced, {str(tmp_path)!r}, ranks=2)])
    """
    found = run_forked([sys.executable, "-c", textwrap.dedent(program)], timeout=50)
    assert found.stdout.splitlines() == [
        *["with a profiler open"] * 2,
        *["with a trace open"] * 2,
        "[True, True, True]",
        "[True, True]",
    ], found.stderr
    assert not list(tmp_path.glob("phalanx-trace-*"))


def test_the_programs_own_trace_is_left_alone(tmp_path: Path) -> None:
    def body() -> bool:
        observer = ExecutionTraceObserver()
        with pytest.warns(UserWarning, match="of its own"):
            observer.register_callback(str(tmp_path / "inner.json"))
        return bool(observer.is_registered)

    outer = ExecutionTraceObserver().register_callback(str(tmp_path / "outer.json"))
    outer.start()
    torch.ones(3)
    assert phalanx.run(body, ranks=1) == [False]
    outer.stop()
    outer.unregister_callback()
    nodes = json.loads((tmp_path / "outer.json").read_text())["nodes"]
    assert "aten::ones" in {node["name"] for node in nodes}


def test_profiling_does_not_change_the_schedule() -> None:
    def body() -> None:
        for _ in range(3):
            with profile(activities=[ProfilerActivity.CPU]):
                dist.all_reduce(torch.ones(2))
                dist.barrier()

    seen = set()
    for _ in range(6):
        with phalanx.World(ranks=3, seed=3) as world:
            world.run(body)
            seen.add(world.fingerprint)
    assert len(seen) == 1


def test_each_ranks_trace_file_names_its_rank(tmp_path: Path) -> None:
    def body() -> int:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            dist.all_reduce(torch.ones(2))
        path = tmp_path / f"{dist.get_rank()}.json"
        profiler.export_chrome_trace(str(path))
        content = json.loads(path.read_text())
        assert content["traceEvents"]
        return int(content["distributedInfo"]["rank"])

    assert phalanx.run(body, ranks=3, backend="gloo") == [0, 1, 2]


def test_tensors_without_data_meet_torchs_own_kernels() -> None:
    def body() -> str:
        with FakeTensorMode():
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
        return type(tensor).__name__

    for _ in range(2):  # the second time in other threads
        assert phalanx.run(body, ranks=2) == ["FakeTensor"] * 2
