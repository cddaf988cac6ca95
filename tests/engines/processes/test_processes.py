"""Ranks as processes: what a function gets there, what travels, what is refused."""

from __future__ import annotations

import functools
import importlib
import ipaddress
import os
import struct
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings
from tests.forked_programs import run_forked

GLOO: dict[str, Any] = {"engine": "processes", "backend": "gloo", "timeout": 30.0}


@pytest.fixture(scope="module")
def world():
    with phalanx.World(ranks=3, **GLOO) as opened:
        yield opened


# -- what runs in the ranks ---------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    x: int
    tensor: torch.Tensor


def nothing() -> None:
    pass


def total(factor: float, *, offset: float = 0.0) -> torch.Tensor:
    tensor = torch.full((2,), dist.get_rank() * factor + offset)
    dist.all_reduce(tensor)
    return tensor


def identity() -> dict[str, Any]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")
    return {
        "pid": os.getpid(),
        "folder": os.getcwd(),
        "backend": dist.get_backend(),
        "is the main thread": threading.current_thread() is threading.main_thread(),
        **{name: os.environ[name] for name in names},
    }


def double(point: Point) -> Point:
    return Point(2 * point.x, 2 * point.tensor)


def give_back(thing: Any) -> Any:
    return thing


def run_inside(ranks: int) -> list[Any]:
    return phalanx.run(total, 1.0, ranks=ranks)


def group_number() -> int:
    dist.new_group([0, 1])
    return dist.get_pg_count()


def destroy() -> None:
    dist.destroy_process_group()


def own_group(times: int) -> list[float]:
    seen = []
    for _ in range(times):
        dist.init_process_group("gloo")
        seen.append(total(1.0)[0].item())
        dist.barrier()
        dist.destroy_process_group()
    return seen


def speak() -> None:
    print(f"out of rank {dist.get_rank()}")
    print(f"err of rank {dist.get_rank()}", file=sys.stderr)
    sys.stdout.write("no end of line")


def a_lock() -> Any:
    return threading.Lock()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def leave() -> None:
    sys.exit(0)


def load(name: str) -> None:
    importlib.import_module(name)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def listening() -> list[str]:
    """The addresses on which this process takes connections."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    own = {os.readlink(link) for link in links if os.path.islink(link)}
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in own:
                address = bytes.fromhex(local.partition(":")[0])
                numbers = struct.unpack(f"<{len(address) // 4}I", address)
                packed = b"".join(struct.pack(">I", number) for number in numbers)
                addresses.append(str(ipaddress.ip_address(packed)))
    return addresses


def loaded(name: str) -> bool:
    return name in sys.modules


# -- calls --------------------------------------------------------------------------------


def test_values_come_in_rank_order(world) -> None:
    assert world.run(dist.get_rank) == [0, 1, 2]


def test_arguments_and_tensors_travel_both_ways(world) -> None:
    values = world.run(total, 2.0, offset=1.0)
    assert len(values) == 3 and all(torch.equal(v, torch.full((2,), 9.0)) for v in values)
    (doubled, *_) = world.run(double, Point(3, torch.arange(3)))
    assert type(doubled) is Point and doubled.x == 6
    assert doubled.tensor.tolist() == [0, 2, 4]


def test_bound_functions_and_partials_travel(world) -> None:
    assert world.run(functools.partial(give_back, 5)) == [5, 5, 5]
    assert world.run("a,b".split, ",") == [["a", "b"]] * 3


def test_a_large_argument_and_result(world) -> None:
    big = torch.arange(1 << 20, dtype=torch.float64)
    assert all(torch.equal(each, big) for each in world.run(give_back, big))


def test_a_rank_is_a_process_as_torchrun_would_start_it(world) -> None:
    ranks = world.run(identity)
    pids = {each.pop("pid") for each in ranks}
    assert len(pids) == 3 and os.getpid() not in pids
    for rank, each in enumerate(ranks):
        assert each == {
            "folder": os.getcwd(),
            "backend": "gloo",
            "is the main thread": True,
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RUN_ID": "phalanx",
        }


def test_processes_and_groups_are_kept_between_runs() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        before = [each["pid"] for each in world.run(identity)]
        counts = [world.run(group_number), world.run(group_number)]
        assert counts == [[2, 2], [3, 3]]
        assert [each["pid"] for each in world.run(identity)] == before


def test_a_group_that_a_run_destroyed_is_made_anew() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        for _ in range(3):
            assert world.run(total, 1.0)[0][0] == 1.0
            world.run(destroy)


def test_without_init_the_program_makes_its_own_group_again_and_again() -> None:
    with phalanx.World(ranks=2, init=False, **GLOO) as world:
        assert world.run(dist.is_initialized) == [False, False]
        assert world.run(own_group, 3) == [[1.0] * 3] * 2


def test_worlds_side_by_side_even_from_threads() -> None:
    found: dict[int, Any] = {}

    def use(ranks: int) -> None:
        with phalanx.World(ranks=ranks, **GLOO) as world:
            for _ in range(5):
                found[ranks] = world.run(total, 1.0)[0][0].item()

    threads = [threading.Thread(target=use, args=(ranks,)) for ranks in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1: 0.0, 2: 1.0, 3: 3.0}


def test_two_open_worlds_have_groups_of_their_own(world) -> None:
    with phalanx.World(ranks=2, **GLOO) as other:
        assert other.run(dist.get_world_size) == [2, 2]
        assert world.run(dist.get_world_size) == [3, 3, 3]
        assert other.run(total, 1.0)[0][0] == 1.0


def test_the_environment_is_the_callers_of_now(monkeypatch) -> None:
    monkeypatch.setenv("PHALANX_TEST", "later")
    assert phalanx.run(variable, "PHALANX_TEST", ranks=1, **GLOO) == ["later"]
    monkeypatch.delenv("PHALANX_TEST")
    assert phalanx.run(variable, "PHALANX_TEST", ranks=1, **GLOO) == [None]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
def test_ranks_listen_on_the_loopback_address_only(world) -> None:
    found = world.run(listening)
    assert all(found)  # Gloo listens in every rank
    assert {address for each in found for address in each} == {"127.0.0.1"}


def test_what_a_rank_came_to_load_the_next_ones_have() -> None:
    name = "torch.distributed.pipelining"
    phalanx.run(load, name, ranks=1, **GLOO)
    assert phalanx.run(loaded, name, ranks=2, **GLOO) == [True, True]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_hundreds_of_calls_leave_no_files_open(world) -> None:
    world.run(total, 1.0)
    before = open_files(), world.run(open_files)
    for _ in range(300):
        world.run(total, 1.0)
    assert (open_files(), world.run(open_files)) == before


def test_sys_exit_without_a_code_is_a_success(world) -> None:
    assert world.run(leave) == [None, None, None]


def test_output_comes_in_whole_lines_through_the_callers_streams(capsys) -> None:
    phalanx.run(speak, ranks=2, **GLOO)
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == [
        "no end of line",
        "no end of line",
        "out of rank 0",
        "out of rank 1",
    ]
    assert {"err of rank 0", "err of rank 1"} <= set(shown.err.splitlines())


def test_modules_named_in_the_settings_are_imported_first(tmp_path, monkeypatch) -> None:
    (tmp_path / "a_backend_of_mine.py").write_text(
        textwrap.dedent(
            """
            import torch.distributed as dist

            def make(store, rank, size, timeout):
                return dist.ProcessGroupGloo(store, rank, size, timeout)

            dist.Backend.register_backend("mine", make, devices=["cpu"])
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    engine = ProcessesEngine(
        ProcessSettings(ranks=2, backend="mine", timeout=30.0, imports=("a_backend_of_mine",))
    )
    try:
        assert engine.call(dist.get_backend) == ["mine", "mine"]
        assert engine.call(total, (1.0,))[0][0] == 1.0
        assert not loaded("a_backend_of_mine")
    finally:
        engine.close()


# -- refusals -----------------------------------------------------------------------------


def refusal(*args: Any, ranks: int = 1, **options: Any) -> str:
    with pytest.raises(phalanx.UsageError) as caught:
        phalanx.run(*args, ranks=ranks, **{**GLOO, **options})
    return str(caught.value)


def test_an_argument_that_cannot_travel_is_named() -> None:
    assert refusal(give_back, threading.Lock()).startswith("argument 1 of give_back: ")
    text = refusal(give_back, thing=[threading.Lock()])
    assert text.startswith("argument 'thing' of give_back: [<unlocked _thread.lock object at")
    assert text.endswith("make it inside the function, or use engine='threads'")


def test_a_result_that_cannot_travel_is_named_and_costs_nothing() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        pids = world.run(os.getpid)
        with pytest.raises(phalanx.UsageError, match=r"rank 0 returned <unlocked _thread.lock"):
            world.run(a_lock)
        assert world.run(os.getpid) == pids


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seed": 3}, "seed=3: the system decides which process runs when"),
        ({"clock": "virtual"}, "clock='virtual': real processes have the real clock"),
        ({"ranks": 1000}, "ranks=1000: engine='processes' takes up to 128"),
        ({"backend": 3}, "backend=3: give a backend's name"),
        ({"engine": "process"}, "engine='process': choose one of 'threads', 'processes'"),
    ],
)
def test_options_that_do_not_apply(options, text) -> None:
    assert refusal(nothing, **options).startswith(text)


def test_an_unknown_backend_is_refused_with_those_that_torch_knows() -> None:
    with pytest.raises(phalanx.UsageError, match=r"'nosuch': torch knows .*gloo, nccl"):
        phalanx.run(nothing, ranks=1, **{**GLOO, "backend": "nosuch"})


def test_a_closed_world_refuses() -> None:
    world = phalanx.World(ranks=1, **GLOO)
    world.run(nothing)
    world.close()
    with pytest.raises(phalanx.UsageError, match="this World is closed"):
        world.run(nothing)


# -- scripts ------------------------------------------------------------------------------


def run_script(
    path: Path, source: str, *, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    path.write_text(textwrap.dedent(source))
    return run_forked([sys.executable, str(path)], timeout=50, fresh=fresh)


@pytest.mark.slow
def test_functions_and_classes_of_a_script_travel(tmp_path) -> None:
    done = run_script(
        tmp_path / "program.py",
        """
        import phalanx, torch.distributed as dist

        class Answer:
            def __init__(self, rank): self.rank = rank

        def program():
            return Answer(dist.get_rank())

        if __name__ == "__main__":
            found = phalanx.run(program, ranks=2, engine="processes", backend="gloo")
            print([type(each) is Answer and each.rank for each in found])
        """,
        fresh=True,  # with a main module of its own, which results are looked up in
    )
    assert (done.stdout, done.stderr) == ("[0, 1]\n", "")


def test_a_script_that_starts_ranks_when_imported_is_told_what_to_do(tmp_path) -> None:
    done = run_script(
        tmp_path / "program.py",
        """
        import phalanx

        def program():
            return 1

        phalanx.run(program, ranks=2, engine="processes", backend="gloo")
        """,
    )
    assert "UsageError: the module starts ranks as soon as it is imported" in done.stderr
    assert "put the call under: if __name__ == '__main__':" in done.stderr
    assert done.returncode == 1


def test_the_command_line_runs_a_script_on_processes(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from concurrent.futures import ThreadPoolExecutor
            import torch, torch.distributed as dist
            dist.init_process_group("gloo")
            t = torch.ones(1)
            dist.all_reduce(t)
            pool = ThreadPoolExecutor(1)  # which nobody shuts down: Python does, at the end
            pool.submit(print, "sum", int(t), sys.argv[1:], __name__).result()
            if sys.argv[1] == "fail" and dist.get_rank() == 1:
                raise ValueError("as planned")
            dist.destroy_process_group()
            """
        )
    )

    def launch(word: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "phalanx", "run", "-n", "2", "--engine", "processes"]
        return run_forked([*command, str(script), word], timeout=50)

    done = launch("ok")
    assert (done.returncode, done.stdout) == (0, "[0-1] sum 2 ['ok'] __main__\n")
    assert done.stderr == "phalanx: 2 ranks, 1 collective on 1 group checked: nothing found\n"
    failed = launch("fail")
    assert failed.returncode == 1
    assert failed.stderr.startswith("Traceback (most recent call last):\n  File ")
    assert "RankFailedError: rank 1 raised ValueError: as planned" in failed.stderr
    assert f"phalanx run --ranks 2 --engine processes {script} fail" in failed.stderr


def test_a_rank_can_run_ranks_on_threads(world: phalanx.World) -> None:
    for inner in world.run(run_inside, 2):
        assert [each.tolist() for each in inner] == [[1.0, 1.0]] * 2
    assert world.run(total, 1.0)[0].tolist() == [3.0, 3.0]
