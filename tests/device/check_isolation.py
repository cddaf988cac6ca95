"""What a rank has of its own on a GPU: generators, the current device and stream, settings.
On a machine with a GPU and only torch: `python tests/device/check_isolation.py`.

Prints one line a check and ends with `N passed, N failed`. Numbers are compared with those that
processes of their own draw.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from checking import run_checks  # isort: skip

import torch
import torch.distributed as dist
from torch.nn.functional import dropout

import phalanx
from phalanx.backend.torch_private.private_modes import default_device

RANKS = 3
Meet = Callable[[], Any]


def seeded_first(rank: int, meet: Meet) -> list[Any]:
    """Seeds come before anything touches the GPU."""
    torch.manual_seed(rank)
    meet()
    found = [torch.initial_seed(), torch.cuda.initial_seed()]
    meet()
    found += torch.rand(2, device="cuda").tolist()
    meet()
    return [*found, *torch.randn(3, device="cuda").tolist()]


def numbers(rank: int, meet: Meet) -> list[Any]:
    torch.cuda.manual_seed_all(7 + rank)
    found: list[Any] = []
    for _ in range(3):
        found += torch.rand(2, device="cuda").tolist()
        meet()
        found += dropout(torch.ones(8, device="cuda"), 0.5).tolist()
        meet()
        found += torch.randperm(5, device="cuda").tolist()
    state = torch.cuda.get_rng_state()
    meet()
    found += torch.rand(2, device="cuda").tolist()
    meet()
    torch.cuda.set_rng_state(state)
    meet()
    found += torch.rand(2, device="cuda").tolist()
    with torch.random.fork_rng():
        torch.manual_seed(99)
        meet()
        found += torch.rand(2, device="cuda").tolist()
    meet()
    found += torch.rand(2, device="cuda").tolist()
    box: list[Any] = []
    helper = threading.Thread(target=lambda: box.append(torch.rand(2, device="cuda").tolist()))
    helper.start()
    helper.join()
    return [*found, *box, *torch.rand(1, device="cuda").tolist()]


def recorded(rank: int, meet: Meet) -> list[Any]:
    """A CUDA graph that draws: its numbers go on from replay to replay."""
    torch.cuda.manual_seed(rank)
    drawn = torch.zeros(3, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        drawn.uniform_()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn.uniform_()
    found: list[Any] = []
    for _ in range(3):
        meet()
        graph.replay()
        found += drawn.tolist()
    return found


PROGRAMS = {f.__name__: f for f in (seeded_first, numbers, recorded)}


def in_processes(name: str) -> list[Any]:
    command = [sys.executable, __file__, name]
    started = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    return [json.loads(each.communicate(timeout=200)[0]) for each in started]


def compare(name: str, **options: Any) -> None:
    def program() -> list[Any]:
        return PROGRAMS[name](dist.get_rank(), dist.barrier)

    wanted = in_processes(name)
    for seed in (0, 2):
        found = phalanx.run(program, ranks=RANKS, backend="gloo", seed=seed, **options)
        assert found == wanted, (seed, found, wanted)


def seeds_given_before_cuda_is_there() -> None:
    assert not torch.cuda.is_initialized()
    torch.manual_seed(1234)  # the caller's own, before ranks initialise CUDA
    compare("seeded_first")
    assert torch.cuda.initial_seed() == 1234, "the caller's generator was changed"


def numbers_as_in_processes() -> None:
    torch.cuda.manual_seed(5)
    first = torch.rand(1, device="cuda").item()
    compare("numbers")
    torch.cuda.manual_seed(5)
    assert torch.rand(1, device="cuda").item() == first


def the_callers_generator_is_as_before() -> None:
    before = torch.cuda.get_rng_state()
    compare("numbers")
    assert torch.equal(torch.cuda.get_rng_state(), before)


def numbers_of_cuda_graphs() -> None:
    compare("recorded")


def device_and_stream_are_a_ranks_own() -> None:
    streams = {rank: torch.cuda.Stream() for rank in range(RANKS)}

    def program() -> bool:
        own = streams[dist.get_rank()]
        with torch.cuda.stream(own):
            dist.barrier()
            same = torch.cuda.current_stream() == own
            dist.barrier()
        return same and torch.cuda.current_stream() == torch.cuda.default_stream()

    assert phalanx.run(program, ranks=RANKS, backend="gloo") == [True] * RANKS


def settings_are_a_ranks_own() -> None:
    def program() -> list[Any]:
        rank = dist.get_rank()
        torch.backends.cuda.matmul.allow_tf32 = rank == 1
        torch.backends.cudnn.benchmark = rank == 2
        with torch.autocast("cuda", torch.bfloat16, enabled=rank == 0):
            dist.barrier()
            product = torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
            dist.barrier()
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return [matmul.allow_tf32, cudnn.benchmark, str(product.dtype)]

    assert phalanx.run(program, ranks=RANKS, backend="gloo") == [
        [False, False, "torch.bfloat16"],
        [True, False, "torch.float32"],
        [False, True, "torch.float32"],
    ]


def on_the_default_device() -> list[str]:
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return [str(default_device()), tensor.device.type, str(torch.backends.cudnn.benchmark)]


def ranks_have_the_programs_device_and_settings() -> None:
    torch.set_default_device("cuda")
    torch.backends.cudnn.benchmark = True
    try:
        for engine in ("threads", "processes"):
            found = phalanx.run(on_the_default_device, ranks=2, engine=engine, backend="gloo")
            assert found == [["cuda", "cuda", "True"]] * 2, (engine, found)
    finally:
        torch.set_default_device(None)
        torch.backends.cudnn.benchmark = False


CHECKS = (
    seeds_given_before_cuda_is_there,
    numbers_as_in_processes,
    the_callers_generator_is_as_before,
    numbers_of_cuda_graphs,
    device_and_stream_are_a_ranks_own,
    settings_are_a_ranks_own,
    ranks_have_the_programs_device_and_settings,
)

if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(PROGRAMS[sys.argv[1]](int(sys.argv[2]), lambda: None)))
        sys.exit(0)
    sys.exit(run_checks(CHECKS))
