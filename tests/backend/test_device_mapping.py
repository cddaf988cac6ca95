"""Ranks name GPUs that are not there: function mode and replaced calls, without any GPU.

Whatever touches a device ends in a stand-in below the mapping: a function mode of the test's
own that notes the device and makes the tensor on the CPU.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from phalanx.backend.devices import device_calls, device_mode
from phalanx.backend.devices.device_map import DeviceMap
from phalanx.backend.torch_private import private, private_modes
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads import threads_engine
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.errors import RankFailedError


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


pytestmark = pytest.mark.usefixtures("one_gpu")


def run(body: Callable[[int], Any], ranks: int = 4, **settings: Any) -> list[Any]:
    """`body(local_rank)` in every rank."""
    settings = {"device": "auto", "init": False, "backend": "gloo", **settings}
    engine = ThreadsEngine(Settings(ranks=ranks, **settings))
    try:
        return engine.run(lambda context: body(int(os.environ["LOCAL_RANK"])))
    finally:
        engine.close()


class OnCpu(TorchFunctionMode):
    """Stands for the GPU: notes where a call goes, and goes to the CPU."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
        def moved(given: Any) -> Any:
            if isinstance(given, (str, torch.device)) and str(given).startswith("cuda"):
                self.seen.append(str(given))
                return "cpu"
            return given

        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:
            self.seen.append(f"cuda:{args[1]}")
            return args[0]
        if getattr(func, "__name__", "") == "_parse_to":
            return func(*args, **(kwargs or {}))
        return func(*map(moved, args), **{k: moved(v) for k, v in (kwargs or {}).items()})


def noted(call: Callable[[int], Any]) -> Callable[[int], list[str]]:
    def body(local_rank: int) -> list[str]:
        below = OnCpu()
        private_modes.push_function_mode(below)
        try:
            call(local_rank)
        finally:
            private_modes.remove_function_mode(below)
        return below.seen

    return body


@pytest.mark.parametrize(
    "make",
    [
        lambda r: torch.device("cuda", r),
        lambda r: torch.device("cuda", index=r),
        lambda r: torch.device(type="cuda", index=r),
        lambda r: torch.device(f"cuda:{r}"),
        lambda r: torch.device(torch.device("cuda", r)),
    ],
)
def test_a_device_means_the_gpu_that_is_there(make) -> None:
    assert run(make) == [torch.device("cuda", 0)] * 4


def test_other_devices_stay_as_they_are() -> None:
    made = run(lambda r: (torch.device("cpu"), torch.device("meta", r), torch.device("cuda")))
    assert made == [
        (torch.device("cpu"), torch.device("meta", r), torch.device("cuda")) for r in range(4)
    ]


def test_ranks_share_two_gpus_in_turn(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert run(lambda r: torch.device("cuda", r).index) == [0, 1, 0, 1]
    assert run(lambda r: torch.device("cuda", r).index, gpus=1) == [0, 0, 0, 0]


def test_nodes_have_the_same_gpus(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = run(lambda r: (r, torch.device("cuda", r).index), ranks=6, per_node=3)
    assert found == [(0, 0), (1, 1), (2, 0)] * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda r: torch.zeros(2, device=f"cuda:{r}"),
        lambda r: torch.tensor([1.0], device=torch.device("cuda", r)),
        lambda r: torch.ones(2).to(f"cuda:{r}"),
        lambda r: torch.ones(2).to(device=f"cuda:{r}"),
        lambda r: torch.ones(2).to(f"cuda:{r}", torch.float64),
        lambda r: torch.ones(2).cuda(r),
        lambda r: torch.ones(2).new_zeros(2, device=f"cuda:{r}"),
        lambda r: torch.empty_like(torch.ones(2), device=f"cuda:{r}"),
        lambda r: nn.ReLU().to(f"cuda:{r}")(torch.ones(1).cuda(r)),
        lambda r: nn.BatchNorm1d(2, affine=False, track_running_stats=True).cuda(r),
    ],
)
def test_a_call_goes_to_the_gpu_that_is_there(call) -> None:
    for seen in run(noted(call)):
        assert seen
        assert set(seen) == {"cuda:0"}


def test_a_default_device_is_mapped() -> None:
    def default(r: int) -> torch.device:
        torch.set_default_device(f"cuda:{r}")
        found = torch.get_default_device()
        torch.set_default_device(None)
        return found

    assert run(default) == [torch.device("cuda", 0)] * 4


def read_index(r: int) -> list[int]:
    """How functions of torch.cuda read what they are given."""
    made = [torch.cuda.device(r), torch.cuda.device(f"cuda:{r}")]
    return [each.idx for each in made]


def test_functions_of_torch_cuda_mean_the_gpu_that_is_there() -> None:
    assert run(read_index) == [[0, 0]] * 4


def test_functions_of_torch_accelerator_do_too() -> None:
    def body(r: int) -> Any:
        return torch.accelerator.device_index(r).idx

    assert run(body) == [0] * 4


def test_a_checkpoint_of_another_rank_is_loaded_to_the_gpu_that_is_there(monkeypatch) -> None:
    places: list[str] = []

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        places.append(str(device))
        return self

    monkeypatch.setattr(torch.UntypedStorage, "to", to)
    saved = io.BytesIO()
    torch.save(torch.ones(2), saved)

    def body(r: int) -> None:
        for where in (f"cuda:{r}", {"cpu": f"cuda:{r}"}, torch.device("cuda", r)):
            saved.seek(0)
            torch.load(saved, map_location=where)

    run(body, ranks=2)
    assert places == ["cuda:0"] * 6


def test_a_rank_counts_a_gpu_for_each_rank_of_its_node() -> None:
    assert (
        run(lambda r: (torch.cuda.device_count(), torch.cuda.is_available())) == [(4, True)] * 4
    )
    assert torch.cuda.device_count() == 1


def test_ranks_on_the_cpu_see_no_gpu() -> None:
    def body(r: int) -> Any:
        return torch.cuda.is_available(), torch.cuda.device_count(), private.function_modes()

    assert run(body, device="cpu") == [(False, 0, 0)] * 4
    assert torch.cuda.is_available()


def test_no_mode_where_there_are_enough() -> None:
    assert run(lambda r: private.function_modes(), ranks=1) == [0]
    assert run(lambda r: private.function_modes(), ranks=2, device=None) == [0, 0]
    assert run(lambda r: private.function_modes(), ranks=2) == [1, 1]


def test_generators_and_streams_take_the_mapped_device(monkeypatch) -> None:
    made: list[Any] = []

    class Recorded:
        def __init__(self, device: Any = None) -> None:
            made.append(device)

    monkeypatch.setattr(torch, "Generator", Recorded)

    def body(r: int) -> bool:
        torch.Generator(device=f"cuda:{r}")
        return isinstance(torch.Generator(f"cuda:{r}"), torch.Generator)

    assert run(body, ranks=2) == [True, True]
    assert made == ["cuda:0"] * 4
    assert torch.Generator is Recorded


def test_a_generator_stays_one() -> None:
    def body(r: int) -> list[Any]:
        own = torch.Generator().manual_seed(r)
        draws = torch.rand(1, generator=own).item()
        return [isinstance(torch.default_generator, torch.Generator), draws]

    for r, (is_one, draws) in enumerate(run(body)):
        assert is_one
        assert draws == torch.rand(1, generator=torch.Generator().manual_seed(r)).item()


def test_what_a_rank_derives_from_a_generator_is_one() -> None:
    def body(r: int) -> Any:
        class Own(torch.Generator):
            def twice(self) -> int:
                return 2 * self.initial_seed()

        own = Own()
        own.manual_seed(r)
        assert isinstance(own, torch.Generator) and issubclass(Own, torch.Generator)
        return own, own.twice()

    for r, (own, twice) in enumerate(run(body, ranks=2)):
        assert type(own).__mro__[1] is torch.Generator
        assert twice == own.twice() == 2 * r


def test_hooks_and_recomputed_layers_of_backward_are_mapped() -> None:
    def body(r: int) -> list[torch.device]:
        seen: list[torch.device] = []
        x = torch.ones(3, requires_grad=True)

        def layer(x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.device("cuda", r))
            return x * x

        x.register_hook(lambda grad: seen.append(torch.device("cuda", r)))
        checkpoint = torch.utils.checkpoint.checkpoint
        checkpoint(layer, x, use_reentrant=False).sum().backward()
        torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).sum(), x)
        assert private.function_modes() == 1
        return seen

    assert run(body, ranks=2) == [[torch.device("cuda", 0)] * 6] * 2


def test_the_programs_own_modes_nest_as_before() -> None:
    class Counting(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.device
            return func(*args, **(kwargs or {}))

    def body(r: int) -> tuple[torch.device, int, int]:
        with Counting() as mode:
            made = torch.device("cuda", r)
        return made, mode.count, private.function_modes()

    assert run(body, ranks=2) == [(torch.device("cuda", 0), 1, 1)] * 2


def test_threads_of_a_rank_are_mapped() -> None:
    def body(r: int) -> list[torch.device]:
        found: list[torch.device] = []
        thread = threading.Thread(target=lambda: found.append(torch.device("cuda", r)))
        thread.start()
        thread.join()
        return found

    assert run(body) == [[torch.device("cuda", 0)]] * 4


def test_threads_of_nobody_are_not() -> None:
    engine = ThreadsEngine(Settings(ranks=2, device="auto", init=False))
    found: list[Any] = []
    go, done = threading.Event(), threading.Event()

    def outside() -> None:
        go.wait(10)
        found.extend([torch.device("cuda", 1), torch.cuda.device_count()])
        found.append(torch.cuda.device(1).idx)
        done.set()

    thread = threading.Thread(target=outside)
    thread.start()

    def body(context: Any) -> None:
        go.set()
        done.wait(10)

    engine.run(body)
    engine.close()
    thread.join()
    assert found == [torch.device("cuda", 1), 1, 1]


def test_communication_goes_on_as_without() -> None:
    def body(r: int) -> float:
        dist.init_process_group("gloo")
        x = torch.ones(2) * r
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, bias=False))
        model(x).sum().backward()
        dist.destroy_process_group()
        return x[0].item()

    assert run(body, strict=True) == [6.0] * 4


def everything() -> list[Any]:
    cuda, accelerator = torch.cuda, torch.accelerator
    return [
        cuda.device_count,
        cuda.is_available,
        cuda._get_device_index,
        cuda._utils._get_device_index,
        cuda.memory._get_device_index,
        accelerator._get_device_index,
        accelerator.device_index.__init__,
        torch.Generator,
        torch.Stream,
        torch.Event,
        getattr(torch.autograd, private.BACKWARD_NAME),
        private.function_modes(),
        torch.device("cuda", 3),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays(fails: bool) -> None:
    before = everything()

    def body(r: int) -> None:
        assert everything()[0] is not before[0]
        if fails and r == 1:
            raise ValueError("on purpose")

    if fails:
        with pytest.raises(RankFailedError):
            run(body)
    else:
        run(body)
    assert everything() == before
    assert device_mode._thread.mode is None


def test_a_run_in_a_rank_counts_what_is_there() -> None:
    def body(r: int) -> list[Any]:
        inner = run(lambda r: (torch.cuda.device_count(), torch.device("cuda", r).index), 2)
        return [inner, torch.cuda.device_count(), torch.device("cuda", r).index]

    assert run(body, ranks=3) == [[[(2, 0), (2, 0)], 3, 0]] * 3


def test_a_device_that_no_rank_has_is_left_to_torch() -> None:
    assert run(lambda r: torch.device("cuda", 4).index) == [4] * 4


def test_a_mode_that_was_taken_off_for_a_call_is_not_put_back_twice() -> None:
    """Fake tensors turn dynamo off and on within calls, and DTensor uses them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def body(r: int) -> tuple[float, int]:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4, 6), mesh, [Replicate()])
        w = distribute_tensor(torch.ones(6, 8), mesh, [Shard(1)])
        b = distribute_tensor(torch.ones(8), mesh, [Shard(0)])
        total = torch.addmm(b, x, w).full_tensor().sum().item()
        dist.destroy_process_group()
        return total, private.function_modes()

    assert run(body, ranks=2) == [(4 * 8 * 7.0, 1)] * 2


@pytest.mark.filterwarnings("ignore:.*keeps what torch.compile makes")
def test_compiled_functions_do_not_see_the_mode(monkeypatch) -> None:
    monkeypatch.undo()  # dynamo would look for the GPU
    monkeypatch.setattr(
        threads_engine, "plan_devices", lambda *given, per_node: DeviceMap(1, 2)
    )
    monkeypatch.setattr(device_calls, "_hiding", lambda is_available: is_available)

    def body(r: int) -> list[Any]:
        seen: list[Any] = []

        def backend(graph: Any, inputs: Any) -> Any:
            seen.append(private.function_modes())
            return graph

        @torch.compiler.disable
        def apart() -> None:
            seen.append(torch.device("cuda", r).index)

        @torch.compile(backend=backend)
        def double(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            apart()
            return y + 1

        seen.append(double(torch.ones(2)).sum().item())
        seen.append(torch.device("cuda", r).index)
        return [*seen, private.function_modes()]

    for found in run(body, ranks=2):
        # two graphs, traced and run without the mode; between them it is there
        assert found == [0, 0, 0, 6.0, 0, 1]
