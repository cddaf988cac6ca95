"""Many ranks on one GPU: collectives and training steps, beside what the GPU itself needs.

    python benchmarks/gpu.py [--ranks 8] [--quick] [--only TEXT] [--json FILE] [--profile NAME]

Each figure is the time that all ranks together need for one call or one step. Beside it stands
a floor that is measured in the same run: for collectives the bytes that have to be read and
written, moved by one plain copy; for training steps the same step of one rank alone, as often
as there are ranks. One rank alone has torch's fake group of the same size, so that it does the
same work and sends nothing. Three lines tell what is not ours to change: what a small call
takes without Phalanx (torch's own Python in each rank, below a function mode that does nothing;
a hand-over from thread to thread on one core; one launch), a small call on tensors of the
processor, which is all engine, and a DDP step of one rank on NCCL. Needs CUDA; runs from
`src/` with torch alone.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Another version of the sources can be measured beside this one.
sys.path.insert(0, os.environ.get("PHALANX_SRC") or str(Path(__file__).parents[1] / "src"))
import phalanx

MIB = 1 << 20
WIDTH, LAYERS, ROWS = 2048, 6, 64

Step = Callable[[], object]


class Figure(NamedTuple):
    """What is measured. `limit` is the aim: microseconds for a call, a ratio for a step."""

    name: str
    prepare: Callable[[str], Step]
    limit: float
    moved: float | None = None
    """Bytes read and written by all ranks of a call; None for a step."""


# -- collectives ------------------------------------------------------------------------------


def _ones(nbytes: int, device: str) -> Tensor:
    return torch.ones(nbytes // 4, device=device)


def all_reduce(nbytes: int, device: str) -> Step:
    tensor = torch.zeros(nbytes // 4, device=device)
    return lambda: dist.all_reduce(tensor)


def all_gather(nbytes: int, device: str) -> Step:
    given = _ones(nbytes, device)
    output = _ones(nbytes * dist.get_world_size(), device)
    return lambda: dist.all_gather_into_tensor(output, given)


def reduce_scatter(nbytes: int, device: str) -> Step:
    given = _ones(nbytes, device)
    output = _ones(nbytes // dist.get_world_size(), device)
    return lambda: dist.reduce_scatter_tensor(output, given)


def all_to_all(nbytes: int, device: str) -> Step:
    given, output = _ones(nbytes, device), _ones(nbytes, device)
    return lambda: dist.all_to_all_single(output, given)


def collectives(ranks: int) -> Iterator[Figure]:
    for size, nbytes in (("16 B", 16), ("1 MiB", MIB), ("64 MiB", 64 * MIB)):
        tiny = max(nbytes, 4 * ranks)
        large = nbytes == 64 * MIB
        whole = float(nbytes * ranks)
        limits = (330, 1400, 400, 400) if large else (220, 300, 300, 300)
        moved = (2 * whole, whole * (ranks + 1), whole * (1 + 1 / ranks), 2 * whole)
        calls = (all_reduce, all_gather, reduce_scatter, all_to_all)
        sizes = (nbytes, nbytes, tiny, tiny)
        for call, given, limit, each in zip(calls, sizes, limits, moved, strict=True):
            yield Figure(f"{call.__name__} {size}", partial(call, given), limit, each)


# -- training steps ---------------------------------------------------------------------------


def network(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(device)


def training(model: nn.Module, device: str) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(ROWS, WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def alone(device: str) -> Step:
    return training(network(device), device)


def ddp(device: str) -> Step:
    if dist.get_backend() == "fake":
        return alone(device)
    return training(nn.parallel.DistributedDataParallel(network(device)), device)


def fsdp2(device: str) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = network(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return training(model, device)


def tensor_parallel(device: str) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    styles = (ColwiseParallel, RowwiseParallel)
    plan: Any = {str(n): styles[n % 2]() for n in range(LAYERS)}
    return training(parallelize_module(network(device), mesh, plan), device)


class Block(nn.Module):
    """A layer of a GPT: attention and a network of two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        y = self.norm1(x)
        parts = (
            each(y).view(rows, length, -1, x.shape[-1] // self.heads).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def gpt(device: str) -> Step:
    """Eight ranks: two stages of a pipeline, two parts of each layer, two parts of the data."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    torch.manual_seed(0)
    width, length, rows = 512, 128, 8
    stage = mesh.get_local_rank("pp")
    blocks = nn.Sequential(*(Block(width, 8) for _ in range(2))).to(device)
    wide = dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel())
    plan: Any = {**wide, "out": RowwiseParallel(), "down": RowwiseParallel()}
    for block in blocks:
        parallelize_module(block, mesh["tp"], plan)
    group = mesh.get_group("dp")
    part = PipelineStage(blocks, stage, 2, torch.device(device, 0), group=mesh.get_group("pp"))
    schedule = ScheduleGPipe(part, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-4, foreach=False)
    batch = torch.randn(rows, length, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(batch) if stage == 0 else schedule.step(target=batch)
        for parameter in blocks.parameters():
            if parameter.grad is not None:
                grad: Any = parameter.grad
                dist.all_reduce(getattr(grad, "_local_tensor", grad), group=group)
        optimizer.step()

    return step


STEPS = (
    Figure("DDP step", ddp, 1.6),
    Figure("FSDP2 step", fsdp2, 1.8),
    Figure("tensor parallel step", tensor_parallel, 2.0),
)


# -- measuring --------------------------------------------------------------------------------


def seconds(prepare: Callable[[str], Step], loops: int, device: str) -> float:
    """Of one step, in every rank; the device is done with all of them."""
    step = prepare(device)
    for _ in range(max(3, loops // 10)):
        step()
    torch.cuda.synchronize()
    _together()
    start = time.perf_counter()
    for _ in range(loops):
        step()
    torch.cuda.synchronize()
    _together()
    return (time.perf_counter() - start) / loops


def _together() -> None:
    if dist.get_backend() != "fake":
        dist.barrier()


def in_ranks(figure: Figure, loops: int, *, ranks: int) -> float:
    found = phalanx.run(seconds, figure.prepare, loops, "cuda", ranks=ranks)
    torch.cuda.empty_cache()
    return max(found)


@contextmanager
def fake_group(ranks: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def step_alone(figure: Figure, loops: int, *, ranks: int) -> float:
    with fake_group(ranks):
        found = seconds(figure.prepare, loops, "cuda")
    torch.cuda.empty_cache()
    return found


def copy_speed() -> float:
    """Bytes read and written in a second by a large copy."""
    source = torch.ones(1 << 28, device="cuda")
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        target.copy_(source)
    begin.record()
    for _ in range(20):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return 20 * 2 * source.nbytes / (begin.elapsed_time(end) / 1e3)


def launch_time() -> float:
    """Seconds of one small operation in Python."""
    tensor = torch.ones(4, device="cuda")
    for _ in range(100):
        tensor.add_(1)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(2000):
        tensor.add_(1)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 2000


class _PassOn(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class _NoGroup(dist.ProcessGroup):
    """A group that does nothing."""

    def allreduce(self, *args: Any) -> None: ...


def call_of_torch() -> float:
    """Seconds of `dist.all_reduce` in one rank, without what a group does."""
    tensor = torch.ones(4, device="cuda")
    with fake_group(1), _PassOn():
        group: Any = _NoGroup(0, 1)
        world: Any = dist.distributed_c10d._world
        world.pg_group_ranks[group], world.pg_map[group] = {0: 0}, ("gloo", None)
        return _best(lambda: dist.all_reduce(tensor, group=group))


def hand_over() -> float:
    """Seconds from one thread to the next in a ring of eight on one core."""
    gates, times = [threading.Lock() for _ in range(8)], []

    def run(index: int) -> None:
        os.sched_setaffinity(0, {max(cores)})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(300):
                gates[index].acquire()
                gates[(index + 1) % 8].release()
            times.append((time.perf_counter() - start) / 300 / 8)

    cores = os.sched_getaffinity(0)
    for gate in gates:
        gate.acquire()
    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    gates[0].release()
    for thread in threads:
        thread.join()
    return min(times)


def _best(step: Step) -> float:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(500):
            step()
        times.append((time.perf_counter() - start) / 500)
    return min(times)


def on_cpu(device: str) -> Step:
    tensor = torch.zeros(4)
    return lambda: dist.all_reduce(tensor)


def ddp_on_nccl(loops: int) -> float:
    """What DDP itself adds to a step, without any other rank."""
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        return min(seconds(ddp, loops, "cuda") for _ in range(2))
    finally:
        dist.destroy_process_group()


def peak(prepare: Callable[[str], Step], *, ranks: int) -> int:
    """Bytes of the GPU that some steps of all ranks needed at most."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if ranks == 1:
        with fake_group(1):
            seconds(prepare, 3, "cuda")
    else:
        phalanx.run(seconds, prepare, 3, "cuda", ranks=ranks)
    return torch.cuda.max_memory_allocated()


def profile(figure: Figure, loops: int, *, ranks: int) -> None:
    """Where rank 0's Python time goes, hand-overs included."""

    def run() -> None:
        step = figure.prepare("cuda")
        for _ in range(30):
            step()
        profiler = cProfile.Profile() if dist.get_rank() == 0 else None
        if profiler is not None:
            profiler.enable()
        for _ in range(loops):
            step()
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)

    phalanx.run(run, ranks=ranks)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    ranks, found = options.ranks, []
    speed, launch = copy_speed(), launch_time()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {ranks} ranks")
    print(f"copies move {speed / 1e12:.2f} TB/s; one small launch takes {launch * 1e6:.1f} us")
    print(f"{'call':26}{'us':>10}{'floor':>10}{'ratio':>8}{'aim, us':>10}")
    for figure in collectives(ranks):
        if options.only and options.only not in figure.name:
            continue
        assert figure.moved is not None
        loops = 40 if "64 MiB" in figure.name else 300
        rounds = 1 if options.quick else 3
        best = min(in_ranks(figure, loops, ranks=ranks) for _ in range(rounds))
        floor = figure.moved / speed + launch
        row = _row(figure, best, floor)
        print(
            f"{figure.name:26}{best * 1e6:10.0f}{floor * 1e6:10.0f}{best / floor:8.2f}"
            f"{figure.limit:10.0f}{'' if best * 1e6 <= figure.limit else '  above'}",
            flush=True,
        )
        found.append(row)
    print(f"{'step':26}{'ms':>10}{f'{ranks} x alone':>10}{'ratio':>8}{'aim':>10}")
    for figure in STEPS:
        if options.only and options.only not in figure.name:
            continue
        loops = 30 if options.quick else 60
        best = min(in_ranks(figure, loops, ranks=ranks) for _ in range(2))
        floor = ranks * min(step_alone(figure, loops, ranks=ranks) for _ in range(2))
        print(
            f"{figure.name:26}{best * 1e3:10.1f}{floor * 1e3:10.1f}{best / floor:8.2f}"
            f"{figure.limit:10.1f}{'' if best / floor <= figure.limit else '  above'}",
            flush=True,
        )
        found.append(_row(figure, best, floor))
    if not options.only or options.only in "GPT step":
        best = min(in_ranks(Figure("", gpt, 0), 20, ranks=8) for _ in range(2))
        print(f"GPT step, 2 x 2 x 2 ranks: {best * 1e3:.1f} ms", flush=True)
        found.append({"name": "GPT step", "value": best})
    if not options.only:
        engine = min(in_ranks(Figure("", on_cpu, 0), 2000, ranks=ranks) for _ in range(3))
        print(f"all_reduce 16 B on tensors of the processor: {engine * 1e6:.0f} us")
        call, turn = call_of_torch(), hand_over()
        print(
            f"torch's own call {call * 1e6:.1f} us, a hand-over {turn * 1e6:.1f} us: with one "
            f"launch {(ranks * (call + turn) + launch) * 1e6:.0f} us for {ranks} ranks"
        )
        own = ddp_on_nccl(60)
        print(f"DDP step of one rank on NCCL, {ranks} times: {ranks * own * 1e3:.1f} ms")
        found += [{"name": "engine", "value": engine}, {"name": "DDP on NCCL", "value": own}]
        one, all_of_them = peak(alone, ranks=1), peak(ddp, ranks=ranks)
        print(
            f"peak memory of DDP: {all_of_them / MIB:.0f} MiB; {ranks} x one model alone: "
            f"{ranks * one / MIB:.0f} MiB; ratio {all_of_them / one / ranks:.2f}"
        )
        found.append({"name": "DDP peak", "value": all_of_them, "floor": ranks * one})
    return found


def _row(figure: Figure, best: float, floor: float) -> dict[str, Any]:
    return {"name": figure.name, "value": best, "floor": floor, "limit": figure.limit}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", metavar="TEXT", help="figures with this in their name")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--profile", metavar="TEXT", help="profile these figures instead")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU: torch finds none here", file=sys.stderr)
        return 2
    if options.profile:
        for figure in (*collectives(options.ranks), *STEPS):
            if options.profile in figure.name:
                print(figure.name)
                profile(figure, 20, ranks=options.ranks)
        return 0
    found = measure(options)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
