"""Ranks that name GPUs which are not there, on a machine with a GPU and only torch:
`python tests/device/check_mapping.py`.

Eight ranks say `cuda:{local_rank}` in every way there is and share the first GPU. Prints one
line a check and ends with `N passed, N failed`.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checking import ROOT, run_checks  # isort: skip

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import phalanx

RANKS = 8
FIRST = torch.device("cuda", 0)


def on_ranks(body: Callable[[int], Any], ranks: int = RANKS, **options: Any) -> list[Any]:
    """`body(local_rank)` on ranks that share the first GPU."""
    options = {"device": "cuda", "gpus": 1, **options}
    return phalanx.run(lambda: body(int(os.environ["LOCAL_RANK"])), ranks=ranks, **options)


def ways_to_name_a_device() -> None:
    def body(r: int) -> None:
        x = torch.ones(3)
        there = [
            torch.device("cuda", r),
            torch.device(f"cuda:{r}"),
            torch.device(type="cuda", index=r),
            torch.device(r),
            torch.zeros(2, device=f"cuda:{r}").device,
            torch.zeros(2, device=torch.device("cuda", r)).device,
            torch.zeros(2, device=r).device,
            torch.tensor([1.0], device=f"cuda:{r}").device,
            torch.as_tensor([1.0], device=f"cuda:{r}").device,
            torch.arange(4, device=f"cuda:{r}").device,
            torch.randn(4, device=f"cuda:{r}").device,
            torch.empty_like(x, device=f"cuda:{r}").device,
            x.new_zeros(2, device=f"cuda:{r}").device,
            x.to(f"cuda:{r}").device,
            x.to(r).device,
            x.to(device=r, dtype=torch.float64).device,
            x.to(torch.device("cuda", r), non_blocking=True).device,
            x.cuda(r).device,
            x.cuda(torch.device("cuda", r)).device,
            x.cuda().device,
            x.to("cuda").device,
            nn.Linear(2, 2).cuda(r).weight.device,
            nn.Linear(2, 2).to(f"cuda:{r}").weight.device,
            nn.Linear(2, 2).to(r).weight.device,
            nn.Linear(2, 2, device=f"cuda:{r}").weight.device,
            nn.Linear(2, 2, device="meta").to_empty(device=f"cuda:{r}").weight.device,
            torch.ones(2).untyped_storage().cuda(r).device,
        ]
        assert set(there) == {FIRST}, there
        assert x.cuda(r).get_device() == 0
        assert x.to(f"cuda:{r}") @ torch.ones(3, device=f"cuda:{r}") == 3

    on_ranks(body)


def current_device_and_properties() -> None:
    def body(r: int) -> None:
        assert torch.cuda.current_device() == 0
        torch.cuda.set_device(r)
        torch.cuda.set_device(f"cuda:{r}")
        torch.cuda.set_device(torch.device("cuda", r))
        assert torch.cuda.current_device() == 0
        assert torch.cuda.device_count() == RANKS
        with torch.cuda.device(r):
            assert torch.ones(1, device="cuda").device == FIRST
        with torch.cuda.device_of(torch.ones(1, device=f"cuda:{r}")):
            pass
        assert torch.cuda.get_device_name(r) == torch.cuda.get_device_name(0)
        assert torch.cuda.get_device_properties(r).total_memory > 0
        assert torch.cuda.get_device_capability(f"cuda:{r}") >= (5, 0)
        assert torch.cuda.mem_get_info(r)[1] > 0
        assert torch.cuda.memory_allocated(r) == torch.cuda.memory_allocated(0)
        assert torch.cuda.max_memory_allocated(r) >= 0
        assert torch.cuda.memory_reserved(torch.device("cuda", r)) >= 0
        assert "device ID 0" in torch.cuda.memory_summary(r)
        torch.cuda.reset_peak_memory_stats(r)
        torch.cuda.synchronize(r)
        torch.cuda.synchronize(f"cuda:{r}")
        torch.cuda.empty_cache()

    on_ranks(body)


def streams_and_events() -> None:
    def body(r: int) -> None:
        stream = torch.cuda.Stream(device=r)
        assert stream.device == FIRST, stream.device
        assert torch.cuda.current_stream(r) == torch.cuda.current_stream(0)
        assert torch.cuda.default_stream(f"cuda:{r}") == torch.cuda.default_stream(0)
        with torch.cuda.stream(stream):
            x = torch.ones(1000, device=f"cuda:{r}") * r
            assert torch.cuda.current_stream(r) == stream
        event = stream.record_event()
        event.synchronize()
        assert x.sum().item() == 1000 * r
        assert torch.Stream(device=f"cuda:{r}").device == FIRST
        torch.Event(device=f"cuda:{r}").record()

    on_ranks(body)


def accelerator() -> None:
    def body(r: int) -> None:
        torch.accelerator.set_device_index(r)
        assert torch.accelerator.current_device_index() == 0
        assert torch.accelerator.device_count() == RANKS
        torch.accelerator.synchronize(r)
        assert torch.accelerator.current_stream(r).device == FIRST
        with torch.accelerator.device_index(r):
            assert torch.ones(1, device="cuda").device == FIRST
        module = torch.get_device_module("cuda")
        module.set_device(r)

    on_ranks(body)


def generators() -> None:
    def body(r: int) -> list[float]:
        generator = torch.Generator(device=f"cuda:{r}").manual_seed(r)
        assert isinstance(generator, torch.Generator)
        first = torch.rand(2, device=f"cuda:{r}", generator=generator)
        again = torch.Generator(torch.device("cuda", r)).manual_seed(r)
        assert torch.equal(first, torch.rand(2, device="cuda", generator=again))
        state = torch.cuda.get_rng_state(r)
        torch.cuda.set_rng_state(state, f"cuda:{r}")
        return first.tolist()

    wanted = []
    for r in range(RANKS):
        own = torch.Generator(device="cuda").manual_seed(r)
        wanted.append(torch.rand(2, device="cuda", generator=own).tolist())
    assert on_ranks(body) == wanted


def default_device() -> None:
    def body(r: int) -> None:
        torch.set_default_device(f"cuda:{r}")
        assert torch.ones(2).device == FIRST
        assert torch.get_default_device() == FIRST
        torch.set_default_device(None)
        assert torch.ones(2).device.type == "cpu"
        with torch.device("cuda", r):
            assert torch.ones(2).device == FIRST

    on_ranks(body)


def loading() -> None:
    saved = io.BytesIO()
    torch.save({"x": torch.ones(3)}, saved)
    of_eight = io.BytesIO()
    torch.save(torch.ones(3, device="cuda"), of_eight)
    # as a process with eight GPUs writes it
    foreign = of_eight.getvalue().replace(b"cuda:0", b"cuda:5")

    def load(source: bytes, where: Any) -> torch.device:
        found = torch.load(io.BytesIO(source), map_location=where)
        return (found["x"] if isinstance(found, dict) else found).device

    def body(r: int) -> None:
        for where in (f"cuda:{r}", torch.device("cuda", r), {"cpu": f"cuda:{r}"}):
            assert load(saved.getvalue(), where) == FIRST
        assert load(saved.getvalue(), lambda storage, place: storage.cuda(r)) == FIRST
        assert load(foreign, None) == FIRST

    on_ranks(body)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batches() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = torch.randn(2 * RANKS, 12, generator=generator)
    return shape[:, :8], shape[:, 8:]


def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in parts]).cpu()


def reference() -> torch.Tensor:
    model = network().cuda()
    x, y = batches()
    fit(model, x.cuda(), y.cuda())
    return flat(model)


def part(r: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batches()
    return x[2 * r : 2 * r + 2].cuda(r), y[2 * r : 2 * r + 2].to(f"cuda:{r}")


def check_equal(found: list[torch.Tensor]) -> None:
    wanted = reference()
    for each in found:
        assert torch.allclose(each, wanted, atol=1e-5), (each - wanted).abs().max()


def ddp() -> None:
    def body(r: int) -> torch.Tensor:
        model = nn.parallel.DistributedDataParallel(
            network().cuda(r), device_ids=[r], output_device=r
        )
        x, y = part(r)
        fit(model, x.cpu(), y)  # DDP moves its inputs
        return flat(model)

    check_equal(on_ranks(body))


def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def body(r: int) -> torch.Tensor:
        model = FullyShardedDataParallel(network(), device_id=r, use_orig_params=True)
        fit(model, *part(r))
        with FullyShardedDataParallel.summon_full_params(model):
            return flat(model)

    check_equal(on_ranks(body))


def fsdp2() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def body(r: int) -> torch.Tensor:
        mesh = init_device_mesh("cuda", (RANKS,))
        model = network().to(f"cuda:{r}")
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        fit(model, *part(r))
        return flat(model)

    check_equal(on_ranks(body))


def groups_bound_to_a_device() -> None:
    def body(r: int) -> float:
        dist.init_process_group("nccl", device_id=torch.device("cuda", r))
        torch.cuda.set_device(r)
        x = torch.full((3,), float(r), device=f"cuda:{r}")
        dist.all_reduce(x)
        objects: list[Any] = [None] * RANKS
        dist.all_gather_object(objects, torch.full((1,), float(r), device=f"cuda:{r}"))
        assert [t.item() for t in objects] == list(map(float, range(RANKS)))
        assert {t.device for t in objects} == {FIRST}
        dist.barrier(device_ids=[r])
        dist.destroy_process_group()
        return x[0].item()

    assert on_ranks(body, init=False) == [28.0] * RANKS


def profile_of_nccl() -> None:
    """Ranks that share are not told that NCCL would refuse it: that is why they do."""

    def body(r: int) -> float:
        x = torch.full((3,), float(r), device=f"cuda:{r}")
        dist.all_reduce(x)
        return x[0].item()

    found = on_ranks(body, profile="nccl", strict=True, backend="nccl")
    assert found == [28.0] * RANKS


def mixed_precision_and_pinned_batches() -> None:
    def body(r: int) -> int:
        model = nn.parallel.DistributedDataParallel(network().cuda(r), device_ids=[r])
        loader = DataLoader(TensorDataset(*batches()), batch_size=4, pin_memory=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            assert x.is_pinned()
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(x.cuda(r, non_blocking=True))
                loss = nn.functional.mse_loss(out, y.to(f"cuda:{r}", non_blocking=True))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return len(loader)

    assert on_ranks(body) == [4] * RANKS


def hooks_and_recomputed_layers() -> None:
    def body(r: int) -> None:
        seen: list[torch.device] = []

        def layer(x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.ones(1, device=f"cuda:{r}").device)
            return x * x

        x = torch.ones(3, device=f"cuda:{r}", requires_grad=True)
        x.register_hook(lambda g: seen.append(torch.device("cuda", r)))
        checkpoint(layer, x, use_reentrant=False).sum().backward()
        assert seen == [FIRST] * 3, seen

    on_ranks(body)


def compiled() -> None:
    @torch.compile(backend="eager")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.ones(1, device=x.device)

    def body(r: int) -> float:
        x = torch.full((2,), float(r), device=f"cuda:{r}")
        value = double(x).sum().item()
        assert torch.device("cuda", r) == FIRST
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", phalanx.PhalanxWarning)  # before 2.13: shared code
        assert on_ranks(body) == [4.0 * r + 2 for r in range(RANKS)]


def devices_that_no_rank_has() -> None:
    def body(r: int) -> None:
        for name in (lambda: torch.ones(1, device="cuda:8"), lambda: torch.cuda.set_device(8)):
            try:
                name()
            except (RuntimeError, AssertionError):
                torch.ones(1, device="cuda").sum().item()  # the device goes on
            else:
                raise AssertionError("cuda:8 was taken")

    on_ranks(body, ranks=2)


def ranks_on_the_cpu_see_none() -> None:
    def body() -> tuple[bool, int, str]:
        return torch.cuda.is_available(), torch.cuda.device_count(), dist.get_backend()

    assert phalanx.run(body, ranks=2, device="cpu") == [(False, 0, "gloo")] * 2


def nothing_stays() -> None:
    assert str(torch.device("cuda", 3)) == "cuda:3"
    assert type(torch.Generator()) is torch.Generator
    try:
        torch.ones(1, device=f"cuda:{torch.cuda.device_count()}")
    except RuntimeError:
        pass
    else:
        raise AssertionError("still mapped")


def where_am_i() -> tuple[int, bool, str | None]:
    return (
        torch.cuda.current_device() if torch.cuda.is_available() else -1,
        torch.cuda.is_available(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def processes() -> None:
    found = phalanx.run(where_am_i, ranks=1, engine="processes", device="cuda", gpus=1)
    assert [each[:2] for each in found] == [(0, True)], found
    hidden = phalanx.run(where_am_i, ranks=1, engine="processes", device="cpu")
    assert hidden == [(-1, False, "")], hidden
    try:
        phalanx.World(ranks=RANKS, engine="processes", device="cuda", gpus=1)
    except phalanx.UsageError as error:
        assert "NCCL refuses two ranks on one" in str(error), error
    else:
        raise AssertionError("eight processes on one GPU")


def phalanx_run(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "phalanx", "run", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


PROGRAM = str(Path(__file__).parent / "programs" / "gpu_for_each.py")


def a_script_on_eight_ranks_from_the_shell() -> str:
    options = ["--gpus", "1"] if torch.cuda.device_count() > 1 else []
    done = phalanx_run("-n", "8", *options, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if "sum" in line)
    texts = {line.partition("] ")[2] for line in done.stdout.splitlines()}
    assert len(texts) == 1 and "sum 28, weights" in line, done.stdout
    told = "8 ranks shared 1 GPU: cuda:1 to cuda:7 stood for cuda:0"
    assert told in done.stderr, done.stderr
    alone = phalanx_run("-n", "1", PROGRAM)
    assert alone.returncode == 0, alone.stderr
    assert "shared" not in alone.stderr
    return line


def the_shell_on_the_cpu() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "see.py"
        script.write_text(
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "print('GPUs', torch.cuda.device_count(), torch.cuda.is_available())\n"
            "dist.destroy_process_group()\n"
        )
        for engine in ("threads", "processes"):
            done = phalanx_run("-n", "2", "--device", "cpu", "--engine", engine, str(script))
            assert "[0-1] GPUs 0 False" in done.stdout, done.stdout + done.stderr
        refused = phalanx_run("-n", "2", "--device", "cuda", "--gpus", "99", str(script))
        assert refused.returncode == 2 and "--gpus 99: there" in refused.stderr, refused


def what_it_costs() -> str:
    """Microseconds for a small call of torch in a rank, with and without the mapping."""

    def body(r: int) -> float:
        x = torch.ones(4, device="cuda")
        for _ in range(200):
            x.add(1)
        start = time.perf_counter()
        for _ in range(5000):
            x.add(1)
        return (time.perf_counter() - start) / 5000 * 1e6

    shared = min(on_ranks(body, ranks=2))
    own = min(phalanx.run(lambda: body(0), ranks=2))
    return f"{own:.1f} us without, {shared:.1f} us with"


CHECKS = [
    ways_to_name_a_device,
    current_device_and_properties,
    streams_and_events,
    accelerator,
    generators,
    default_device,
    loading,
    ddp,
    fsdp1,
    fsdp2,
    groups_bound_to_a_device,
    profile_of_nccl,
    mixed_precision_and_pinned_batches,
    hooks_and_recomputed_layers,
    compiled,
    devices_that_no_rank_has,
    ranks_on_the_cpu_see_none,
    nothing_stays,
    processes,
    a_script_on_eight_ranks_from_the_shell,
    the_shell_on_the_cpu,
    what_it_costs,
]

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("these checks need a GPU")
    sys.exit(run_checks(CHECKS))
