"""Checks for a machine with a GPU and only torch: `python tests/device/check_cuda.py`.

Several ranks share one GPU (NCCL refuses that). Each check compares with a single-process
run. Prints one line a check and ends with `N passed, N failed`.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
import phalanx

STEPS, BATCH = 5, 16


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, 8, generator=generator)
    y = torch.randn(BATCH, 4, generator=generator)
    return x.to(device), y.to(device)


def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def reference(device: str) -> torch.Tensor:
    model = network().to(device)
    fit(model, *batch(device))
    return flat(model)


def flat(model: nn.Module) -> torch.Tensor:
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in parts]).cpu()


def quarter(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    size = BATCH // dist.get_world_size()
    start = dist.get_rank() * size
    x, y = batch(device)
    return x[start : start + size], y[start : start + size]


def train_ddp(device: str) -> torch.Tensor:
    model = nn.parallel.DistributedDataParallel(network().to(device))
    fit(model, *quarter(device))
    return flat(model)


def train_fsdp(device: str) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = network().to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    fit(model, *quarter(device))
    return flat(model)


def train_tensor_parallel(device: str) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network().to(device), mesh, plan)
    fit(model, *batch(device))
    return flat(model)


def train_pipeline(device: str) -> torch.Tensor:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    whole = network().to(device)
    part = whole[:2] if rank == 0 else whole[2:]
    stage = PipelineStage(part, rank, 2, torch.device(device))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    x, y = batch(device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        schedule.step(x) if rank == 0 else schedule.step(target=y, losses=[])
        optimizer.step()
    return flat(part)


def collectives(device: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    t = torch.full((1000,), float(rank), device=device)
    dist.all_reduce(t)
    assert t.eq(sum(range(size))).all()
    side = torch.cuda.Stream() if device == "cuda" else None
    with torch.cuda.stream(side):
        big = torch.full((1 << 20,), float(rank), device=device)
        for _ in range(50):
            big = big * 1.0
        work = dist.all_reduce(big, async_op=True)
    work.wait()
    assert big.sum().item() == sum(range(size)) * (1 << 20)
    parts = [torch.empty(3, device=device) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank), device=device))
    assert [p[0].item() for p in parts] == [float(r) for r in range(size)]
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    out = torch.empty(2, device=device)
    dist.reduce_scatter(out, [torch.full((2,), float(rank), device=device)] * size)
    assert out.eq(sum(range(size))).all()
    future = dist.all_reduce(torch.ones(1, device=device), async_op=True).get_future()
    assert future.wait()[0].item() == size
    dist.barrier()


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.allclose(got, wanted, atol=1e-6), (got - wanted).abs().max()


def check_training(name: str, device: str, backend: str | None) -> None:
    train = globals()[f"train_{name}"]
    wanted = reference(device)
    if name == "pipeline":
        first, second = phalanx.run(train, device, ranks=2, backend=backend)
        close(torch.cat([first, second]), wanted)
        return
    for got in phalanx.run(train, device, ranks=4, backend=backend):
        close(got, wanted)


def count(device: str) -> dict[str, int]:
    """A dispatch mode sees what it sees on real groups."""
    x = torch.ones(2, 3, device=device)
    with CommDebugMode() as mode:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size())], x)
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3).to(device))
        model(x.requires_grad_()).sum().backward()
    return {str(op): n for op, n in mode.get_comm_counts().items()}


def watching(device: str, backend: str | None) -> None:
    counts = phalanx.run(count, device, ranks=3, backend=backend)
    for found in counts:
        assert found["c10d.allreduce_"] == 2, found
        assert found["c10d.allgather_"] >= 1, found


def record(device: str) -> tuple[int, int]:
    """Events of the collectives, and kernels on the device."""
    x = torch.ones(64, 64, device=device)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * (device == "cuda"))]
    with profile(activities=kinds, record_shapes=True) as profiler:
        for _ in range(3):
            dist.all_reduce(x)
            x @ x
        if device == "cuda":
            torch.cuda.synchronize()
    events = profiler.events()
    mine = [e for e in events if e.name in ("gloo:all_reduce", "nccl:all_reduce")]
    assert all(e.input_shapes == [[64, 64]] for e in mine), [e.input_shapes for e in mine]
    return len(mine), sum(e.device_type == torch.autograd.DeviceType.CUDA for e in events)


def profiling(device: str, backend: str | None) -> None:
    found = phalanx.run(record, device, ranks=3, backend=backend)
    assert [collectives for collectives, _ in found] == [3, 3, 3], found
    print("   kernels seen by each rank's profiler:", [kernels for _, kernels in found])


def split() -> list[float]:
    """Halves of the world, each with a sum of its own."""
    halves = [[0, 1], [2, 3]]
    part = dist.split_group(split_ranks=halves)
    assert part is not None
    x = torch.tensor([float(dist.get_rank())], device="cuda")
    dist.all_reduce(x, group=part)
    return [x.item(), float(dist.get_rank(part)), float(dist.get_world_size(part))]


def splitting(device: str, backend: str | None) -> None:
    def body() -> list[float]:
        dist.init_process_group(backend, device_id=torch.device("cuda", 0))
        return split()

    found = phalanx.run(body, ranks=4, init=False)
    assert found == [[1, 0, 2], [1, 1, 2], [5, 0, 2], [5, 1, 2]], found


def normalize(sync: bool, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).cuda()
    if sync:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    out = model(x)
    (out * out.detach().cos()).mean().backward()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return out.detach().cpu(), torch.cat(grads).cpu()


def sync_batch_norm(device: str, backend: str | None) -> None:
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(3)).cuda()
    wanted, gradients = normalize(False, x)

    def body() -> tuple[torch.Tensor, ...]:
        rank = dist.get_rank()
        return normalize(True, x[2 * rank : 2 * rank + 2])

    found = phalanx.run(body, ranks=4, backend=backend)
    close(torch.cat([out for out, _ in found]), wanted)
    for _, gradient in found:
        close(gradient, gradients)


def amp(device: str) -> torch.Tensor:
    model = nn.parallel.DistributedDataParallel(network().to(device))
    x, y = quarter(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return flat(model)


def mixed_precision(device: str, backend: str | None) -> None:
    found = phalanx.run(amp, device, ranks=4, backend=backend)
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert (found[0] - reference(device)).abs().max() < 1e-2


OTHERS = {
    "watching": watching,
    "profiling": profiling,
    "splitting": splitting,
    "sync_batch_norm": sync_batch_norm,
    "mixed_precision": mixed_precision,
}


def all_checks() -> list[tuple[str, str, str | None]]:
    """(check, device, backend)"""
    places: list[tuple[str, str | None]] = [("cpu", "gloo")]
    if torch.cuda.is_available():
        places += [("cuda", "nccl"), ("cuda", None), ("cuda", "cpu:gloo,cuda:nccl")]
    names = ["collectives", "ddp", "fsdp", "tensor_parallel", "pipeline"]
    checks = [(name, *place) for place in places for name in names]
    checks += [(name, *place) for place in places for name in ("watching", "profiling")]
    checks.append(("collectives", "cpu", None))  # also where there are GPUs
    if torch.cuda.is_available():
        checks += [(n, "cuda", "nccl") for n in OTHERS if n not in ("watching", "profiling")]
    return checks


def run_check(name: str, device: str, backend: str | None) -> None:
    if name in OTHERS:
        OTHERS[name](device, backend)
        return
    if name != "collectives":
        check_training(name, device, backend)
        return
    for ranks in (2, 8):
        phalanx.run(collectives, device, ranks=ranks, backend=backend)


def main() -> int:
    print("torch", torch.__version__, "python", sys.version.split()[0])
    failed = 0
    checks = all_checks()
    for name, device, backend in checks:
        start = time.perf_counter()
        try:
            run_check(name, device, backend)
            word = "ok"
        except Exception:
            failed += 1
            word = "FAILED\n" + traceback.format_exc()
        seconds = time.perf_counter() - start
        print(f"{device:5} {backend!s:20} {name:16} {seconds:6.2f} s {word}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
