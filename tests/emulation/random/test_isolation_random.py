"""Random numbers: a rank draws what a process of its own would, and touches nobody else's."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import gauss as early_gauss
from random import randint as early_randint
from random import random as early_random
from random import seed as early_seed
from random import shuffle as early_shuffle
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from numpy.random import rand as early_rand
from numpy.random import randn as early_randn
from numpy.random import seed as early_numpy_seed
from torch.nn.functional import dropout
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import phalanx
from phalanx.backend.torch_private import private_generators
from phalanx.cli.main import main
from phalanx.emulation.random import generator_memory, helper_thread_rng
from tests.emulation.isolation_programs import in_processes, in_ranks, run_script

Meet = Callable[[], object]
SCHEDULES = [0, 1, 5]


def python_numbers(rank: int, meet: Meet) -> list[Any]:
    random.seed(100 + rank)
    found: list[Any] = []
    for _ in range(4):
        found += [random.random(), random.gauss(0, 1), random.randint(0, 10**9)]
        meet()
        found += [early_random(), early_randint(0, 10**9), early_gauss(0, 1)]
        meet()
        mixed = list(range(20))
        early_shuffle(mixed)
        found += [mixed, random.sample(range(1000), 3), random.choices("abc", k=3)]
        meet()
    early_seed(rank)
    meet()
    early_seed(rank + 1)  # and no number drawn in between
    meet()
    found.append(random.getrandbits(64))
    state = random.getstate()
    meet()
    random.setstate(state)
    return [*found, random.random()]


def numpy_numbers(rank: int, meet: Meet) -> list[Any]:
    numpy.random.seed(7 * rank)
    found: list[Any] = []
    for _ in range(4):
        found += [numpy.random.rand(), numpy.random.randn(), early_randn()]
        meet()  # one of two normal numbers is left over here
        found += [numpy.random.randn(), early_rand(), numpy.random.permutation(9).tolist()]
        meet()
        found += [numpy.random.randn(3).tolist(), numpy.random.randint(0, 1000)]
        meet()
    early_numpy_seed(rank)
    meet()
    found.append(numpy.random.uniform())
    return found


def torch_numbers(rank: int, meet: Meet) -> list[Any]:
    torch.manual_seed(rank)
    found: list[Any] = []
    for _ in range(4):
        found += [torch.rand(3), torch.randn(1), torch.randperm(8)]
        meet()  # here too
        found += [torch.randn(1), dropout(torch.ones(20)), torch.randint(0, 99, (4,))]
        meet()
    found.append(torch.tensor(torch.initial_seed()))
    state = torch.get_rng_state()
    meet()
    found.append(torch.rand(700))
    meet()
    torch.set_rng_state(state)
    meet()
    found.append(torch.rand(1))
    return [each.tolist() for each in found]


def loader_numbers(rank: int, meet: Meet) -> list[Any]:
    """The base seed of a loader and the order of its samples come from torch's generator."""
    torch.manual_seed(rank)
    data = TensorDataset(torch.arange(12))
    found: list[Any] = []
    for _ in range(2):
        for (batch,) in DataLoader(data, batch_size=4, shuffle=True):
            found.append(batch.tolist())
            meet()
        found.append(list(RandomSampler(data)))
        meet()
    return found


PROGRAMS = {
    f.__name__: f for f in (python_numbers, numpy_numbers, torch_numbers, loader_numbers)
}


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rank_draws_what_a_process_of_its_own_draws(name: str, seed: int) -> None:
    program = PROGRAMS[name]
    assert in_ranks(program, 3, seed) == in_processes(program, 3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_callers_generators_are_as_before(name: str) -> None:
    random.gauss(0, 1)
    numpy.random.randn()
    torch.randn(1)
    before = random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist()
    in_ranks(PROGRAMS[name], 2)
    after = random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist()
    assert after == before

    def fail() -> None:
        PROGRAMS[name](dist.get_rank(), dist.barrier)
        raise ValueError("as planned")

    with pytest.raises(phalanx.RankFailedError):
        phalanx.run(fail, ranks=2)
    after = random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist()
    assert after == before


def draw_unseeded() -> list[float]:
    found = []
    for _ in range(2):
        found += [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        dist.barrier()
    return found


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_ranks_of_a_function_go_on_from_where_the_caller_is(engine: Any) -> None:
    random.seed(3)
    numpy.random.seed(3)
    torch.manual_seed(3)
    found = phalanx.run(draw_unseeded, ranks=3, engine=engine)
    wanted = []
    for _ in range(2):
        wanted += [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
    assert found == [wanted] * 3


SCRIPT = """
import random, numpy, torch
import torch.distributed as dist

dist.init_process_group("gloo")
drawn = [None, None]
mine = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
dist.all_gather_object(drawn, mine)
assert not set(drawn[0]) & set(drawn[1]), drawn
"""


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_ranks_of_a_script_draw_what_no_other_does(tmp_path: Path, engine: str) -> None:
    script = tmp_path / "draw.py"
    script.write_text(SCRIPT)
    assert main(["run", "-n", "2", "--engine", engine, str(script)]) == 0


def test_a_rank_goes_on_in_the_next_run_of_its_world() -> None:
    def draw(first: bool) -> float:
        if first:
            random.seed(dist.get_rank())
        dist.barrier()
        return random.random()

    with phalanx.World(ranks=2) as world:
        found = [world.run(draw, True), world.run(draw, False)]
    for rank in range(2):
        own = random.Random(rank)
        assert [values[rank] for values in found] == [own.random(), own.random()]


def test_a_nested_run_gives_the_outer_rank_back_its_own() -> None:
    def outer() -> list[float]:
        random.seed(dist.get_rank())
        found = [random.random()]
        phalanx.run(lambda: random.seed(99), ranks=2)
        return [*found, random.random()]

    for rank, found in enumerate(phalanx.run(outer, ranks=2)):
        own = random.Random(rank)
        assert found == [own.random(), own.random()]


def test_instances_and_the_system_generator_are_what_they_were() -> None:
    def program() -> tuple[float, bool]:
        own = random.Random(4)
        dist.barrier()
        return own.random(), 0 <= random.SystemRandom().random() < 1

    assert phalanx.run(program, ranks=2) == [(random.Random(4).random(), True)] * 2


# -- threads that a rank starts ------------------------------------------------------------


def numbers_of_helpers(rank: int, meet: Meet) -> list[Any]:
    """One thread draws at a time, so that the order is certain in a process as well."""
    random.seed(rank)
    numpy.random.seed(rank)
    torch.manual_seed(rank)

    def draw() -> list[Any]:
        rest = torch.empty(2).uniform_().tolist()
        return [
            random.random(),
            random.gauss(0, 1),
            numpy.random.randn(),
            torch.randn(1).item(),
            rest,
        ]

    found = []
    for _ in range(3):
        box: list[Any] = []
        helper = threading.Thread(target=lambda box=box: box.append(draw()))
        helper.start()
        helper.join()
        found += [box, draw()]
        meet()
    with ThreadPoolExecutor(1) as pool:
        found.append(pool.submit(draw).result())
    return [*found, draw()]


@pytest.mark.parametrize("seed", SCHEDULES)
def test_threads_of_a_rank_draw_from_its_generators(seed: int) -> None:
    assert in_ranks(numbers_of_helpers, 3, seed) == in_processes(numbers_of_helpers, 3)


def everything_random() -> list[Any]:
    """Each layer of torch that draws: C functions, Python over them, modules."""
    functional, init, ones = torch.nn.functional, torch.nn.init, torch.ones(2, 4, 6)
    lstm = torch.nn.LSTM(6, 3, num_layers=2, dropout=0.5)
    gamma = torch.distributions.Gamma(torch.ones(2), torch.ones(2))
    return [
        functional.dropout(ones),
        functional.dropout2d(ones.unsqueeze(0)),
        functional.gumbel_softmax(ones),
        functional.rrelu(-ones, training=True),
        functional.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.5),
        init.kaiming_uniform_(torch.empty(2, 3)),
        init.trunc_normal_(torch.empty(3)),
        init.uniform_(torch.empty(3)),
        lstm(ones)[0].detach(),
        torch.nn.FractionalMaxPool2d(2, output_ratio=0.5)(ones),
        torch.nn.MultiheadAttention(6, 2, dropout=0.5)(ones, ones, ones)[0].detach(),
        gamma.sample(),
        torch.distributions.Dirichlet(torch.ones(3)).sample(),
    ]


def test_everything_that_draws_does_so_in_its_ranks_turn() -> None:
    """A thread of rank 0 draws by all of these while rank 1 has the baton and draws too."""
    may_draw, is_at_it = threading.Event(), threading.Event()

    def program() -> list[Any]:
        rank = dist.get_rank()
        torch.manual_seed(rank)
        if rank == 0:
            box: list[Any] = []

            def draw() -> None:
                may_draw.wait()
                is_at_it.set()
                box.extend(everything_random())

            helper = threading.Thread(target=draw)
            helper.start()
            dist.barrier()
            helper.join()
            return box
        numbers = [torch.rand(4)]
        may_draw.set()
        while not is_at_it.is_set():
            sum(range(100))
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end:
            sum(range(100))
            numbers.append(torch.rand(4))
        dist.barrier()
        return numbers

    drawn, numbers = phalanx.run(program, ranks=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wanted = everything_random()
    assert all(map(torch.allclose, drawn, wanted))  # sums may be rounded otherwise
    generator = torch.Generator().manual_seed(1)
    assert all(torch.equal(each, torch.rand(4, generator=generator)) for each in numbers)


def test_every_function_that_draws_is_known() -> None:
    """torch marks such operators."""
    tag = torch.Tag.nondeterministic_seeded
    for owner in (torch, torch.Tensor):
        for name in dir(owner):
            operator: Any = getattr(torch.ops.aten, name, None)
            if name.startswith("_") or not hasattr(operator, "overloads"):
                continue
            if all(tag in getattr(operator, each).tags for each in operator.overloads()):
                function = getattr(owner, name)
                assert name in UNUSED or function in helper_thread_rng.RANDOM, (owner, name)


UNUSED = {"random", "miopen_rnn"}  # a module; for another kind of device


def test_a_helper_that_seeds_while_another_rank_runs_seeds_its_own() -> None:
    """Rank 0's thread seeds when rank 1 has the baton and is busy."""
    reached, seeded = threading.Event(), threading.Event()

    def program() -> list[float]:
        rank = dist.get_rank()
        random.seed(rank)
        numpy.random.seed(rank)
        torch.manual_seed(rank)
        if rank == 0:

            def seed() -> None:
                reached.wait()
                random.seed(50)
                numpy.random.seed(50)
                seeded.set()
                torch.manual_seed(50)

            helper = threading.Thread(target=seed)
            helper.start()
            dist.barrier()
            helper.join()
        else:
            reached.set()
            for _ in range(2000):
                sum(range(500))
                if seeded.is_set():
                    break
            dist.barrier()
        return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]

    def alone(seed: int) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        return [
            random.Random(seed).random(),
            float(numpy.random.RandomState(seed).rand()),
            float(torch.rand((), generator=generator)),
        ]

    assert phalanx.run(program, ranks=2) == [alone(50), alone(1)]


def test_the_functions_are_pythons_own_again_after_a_run_with_threads() -> None:
    before = random.random, numpy.random.rand, random.shuffle

    def program() -> None:
        helper = threading.Thread(target=random.random)
        helper.start()
        helper.join()

    phalanx.run(program, ranks=2)
    assert (random.random, numpy.random.rand, random.shuffle) == before


# -- others -----------------------------------------------------------------------------------


def test_ddp_with_dropout_is_a_process_of_its_own() -> None:
    """The masks that a rank draws do not depend on how ranks take turns."""

    def program() -> list[float]:
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        torch.manual_seed(10 + dist.get_rank())
        found = []
        for _ in range(3):
            mask = dropout(torch.ones(16), 0.5)
            model(torch.ones(2, 4)).sum().backward()
            found += mask.tolist()
        return found

    found = phalanx.run(program, ranks=3)
    assert found == phalanx.run(program, ranks=3, seed=3)
    for rank, values in enumerate(found):
        torch.manual_seed(10 + rank)
        assert values == torch.cat([dropout(torch.ones(16), 0.5) for _ in range(3)]).tolist()


def test_a_forked_child_goes_on_from_its_ranks_generators() -> None:
    def program() -> bool:
        random.seed(dist.get_rank())
        torch.manual_seed(dist.get_rank())
        dist.barrier()
        data = TensorDataset(torch.arange(4))
        loader = DataLoader(data, num_workers=1, collate_fn=_numbers_of_worker)
        torch.manual_seed(dist.get_rank())
        found = [each for batch in loader for each in batch]
        torch.manual_seed(dist.get_rank())
        again = [each for batch in loader for each in batch]
        dist.barrier()
        return found == again and len(set(found)) == len(found)

    assert phalanx.run(program, ranks=2) == [True, True]


def _numbers_of_worker(batch: Any) -> list[float]:
    return [random.random(), float(torch.rand(()))]


@pytest.mark.slow
def test_numpy_that_a_rank_imports_first(tmp_path: Path) -> None:
    program = """
        import sys, torch.distributed as dist, phalanx
        assert "numpy.random" not in sys.modules

        def draw():
            import numpy
            numpy.random.seed(dist.get_rank())
            dist.barrier()
            return float(numpy.random.rand())

        found = phalanx.run(draw, ranks=3)
        import numpy
        wanted = [float(numpy.random.RandomState(rank).rand()) for rank in range(3)]
        assert found == wanted, found
        print("as processes")
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert found.stdout == "as processes\n", found.stderr


@pytest.mark.slow
def test_ranks_of_a_script_differ_and_can_be_repeated(tmp_path: Path) -> None:
    source = """
        import random, numpy, torch, os
        print(os.environ["RANK"], random.random(), numpy.random.rand(), torch.rand(()).item())
    """
    late = """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.barrier()
    """
    late += source
    late += "    if dist.get_rank() == 1:\n            dist.barrier()\n"
    runs = [run_script(tmp_path, text, "--seed", "4") for text in (source, late)]
    lines = [sorted(each.stdout.split("\n")) for each in runs]
    assert lines[0] == lines[1]  # also if another rank draws first
    numbers = [line.split()[2:] for line in lines[0] if line.strip()]
    assert len(numbers) == 2 and not set(numbers[0]) & set(numbers[1])


def test_the_shortcuts_through_memory_are_in_use_here() -> None:
    """Without them everything works too, but slowly; the tests below show that."""
    assert isinstance(
        generator_memory.python_generator(), generator_memory.PythonGeneratorMemory
    )
    assert isinstance(
        generator_memory.numpy_generator(numpy.random.mtrand),
        generator_memory.NumpyGeneratorMemory,
    )
    assert private_generators.look_at_cpu_generator(torch.default_generator) is not None


def test_without_the_shortcuts_the_numbers_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from phalanx.emulation.random import randomness

    monkeypatch.setattr(randomness, "_live", {})
    monkeypatch.setattr(randomness, "_spares", {})
    monkeypatch.setattr(generator_memory, "_is_where_we_think", lambda: False)
    monkeypatch.setattr(generator_memory, "_gauss_place", lambda kind: None)
    monkeypatch.setattr(private_generators, "_engine_place", lambda: None)
    for program in PROGRAMS.values():
        assert in_ranks(program, 2) == in_processes(program, 2)


def test_seeds_for_accelerators_that_are_not_there_do_not_reach_the_process() -> None:
    def queued() -> list[str]:
        trackers = [torch.xpu._lazy_seed_tracker, torch.mtia._lazy_seed_tracker]
        return [repr(tracker.get_calls()) for tracker in trackers]

    torch.manual_seed(1)
    before = queued()
    drawn = phalanx.run(seed_by_rank, ranks=2)
    assert queued() == before
    assert drawn[0] != drawn[1]
    torch.manual_seed(2)
    assert queued() != before


def seed_by_rank() -> float:
    torch.manual_seed(dist.get_rank())
    return torch.rand(1).item()


def test_the_caller_may_change_what_looks_alike_between_two_runs() -> None:
    """The second of two normal numbers that wait, and the upper half of a seed."""
    numpy.random.seed(0)
    numpy.random.standard_normal()
    state = numpy.random.get_state()
    torch.default_generator.manual_seed(1)
    phalanx.run(look_at_seed, ranks=2)
    numpy.random.set_state((*state[:4], 42.0))
    torch.default_generator.manual_seed(1 + 2**32)
    assert phalanx.run(look_at_seed, ranks=2) == [(42.0, 1 + 2**32)] * 2
    assert numpy.random.standard_normal() == 42.0
    assert torch.initial_seed() == 1 + 2**32


def look_at_seed() -> tuple[float, int]:
    return numpy.random.standard_normal(), torch.initial_seed()
