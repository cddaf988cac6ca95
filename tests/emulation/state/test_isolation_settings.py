"""Settings that torch and Python keep once per process: each rank has its own."""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import phalanx
from phalanx.emulation import run_patches
from phalanx.emulation.state import folder, rank_settings
from tests.emulation.isolation_programs import in_processes, in_ranks, run_script

Meet = Callable[[], object]


def flag(owner: Any, name: str) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    return (lambda value: setattr(owner, name, value)), (lambda: getattr(owner, name))


def set_digits(digits: int) -> None:
    options: Any = torch.set_printoptions
    options(precision=digits)


def printed() -> str:
    return repr(torch.tensor([1.23456789]))


sharing: Any = torch.multiprocessing
cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
# What sets it, what reads it, and the values of ranks 0 and 1.
SETTINGS: dict[str, tuple[Any, Callable[[], Any], tuple[Any, Any]]] = {
    "default dtype": (
        torch.set_default_dtype,
        lambda: torch.ones(1).dtype,
        (torch.float64, torch.float32),
    ),
    "deterministic": (
        lambda on: torch.use_deterministic_algorithms(on, warn_only=on),
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        (True, False),
    ),
    "deterministic debug mode": (
        torch.set_deterministic_debug_mode,
        torch.get_deterministic_debug_mode,
        (1, 2),
    ),
    "matmul precision": (
        torch.set_float32_matmul_precision,
        torch.get_float32_matmul_precision,
        ("high", "medium"),
    ),
    "cublas tf32": (*flag(cuda.matmul, "allow_tf32"), (True, False)),
    "cudnn tf32": (*flag(cudnn, "allow_tf32"), (False, True)),
    "cudnn benchmark": (*flag(cudnn, "benchmark"), (True, False)),
    "cudnn deterministic": (*flag(cudnn, "deterministic"), (True, False)),
    "cudnn enabled": (*flag(cudnn, "enabled"), (False, True)),
    "mkldnn": (*flag(mkldnn, "enabled"), (False, True)),
    "flash attention": (cuda.enable_flash_sdp, cuda.flash_sdp_enabled, (False, True)),
    "attention in plain": (cuda.enable_math_sdp, cuda.math_sdp_enabled, (False, True)),
    "anomaly": (
        lambda on: torch.autograd.set_detect_anomaly(on, check_nan=False),
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        (True, False),
    ),
    "threads": (lambda n: torch.set_num_threads(n), torch.get_num_threads, (1, 3)),
    "flush denormal": (
        torch.set_flush_denormal,
        lambda: (torch.tensor([1e-310], dtype=torch.float64) * 1).item() == 0.0,
        (True, False),
    ),
    "autocast": (
        lambda on: torch.set_autocast_enabled("cpu", on),
        lambda: torch.is_autocast_enabled("cpu"),
        (True, False),
    ),
    "autocast dtype": (
        lambda dtype: torch.set_autocast_dtype("cpu", dtype),
        lambda: torch.get_autocast_dtype("cpu"),
        (torch.float16, torch.bfloat16),
    ),
    "autocast cache": (
        torch.set_autocast_cache_enabled,
        torch.is_autocast_cache_enabled,
        (False, True),
    ),
    "grad mode": (torch.set_grad_enabled, torch.is_grad_enabled, (False, True)),
    "default device": (torch.set_default_device, lambda: torch.ones(1).device, ("meta", "cpu")),
    "mask": (lambda mask: os.umask(mask), lambda: _mask(), (0o077, 0o007)),
    "start method": (
        lambda method: multiprocessing.set_start_method(method, force=True),
        multiprocessing.get_start_method,
        ("spawn", "forkserver"),
    ),
    "temporary folder": (*flag(tempfile, "tempdir"), ("/tmp/a", "/tmp/b")),
    "display hook": (*flag(sys, "displayhook"), (id, repr)),
    "hook for what cannot be raised": (*flag(sys, "unraisablehook"), (id, repr)),
    "lines of tracebacks": (
        lambda lines: setattr(sys, "tracebacklimit", lines),
        lambda: vars(sys).get("tracebacklimit"),
        (0, 3000),
    ),
    "bytecode": (*flag(sys, "dont_write_bytecode"), (not sys.dont_write_bytecode, False)),
    "name of the process": (
        *flag(multiprocessing.current_process(), "name"),
        ("first", "second"),
    ),
}


SHARED: dict[str, tuple[Any, Callable[[], Any], tuple[Any, Any]]] = {
    "fill": (*flag(torch.utils.deterministic, "fill_uninitialized_memory"), (False, True)),
    "cublas fp16": (
        *flag(cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        (False, True),
    ),
    "warn always": (torch.set_warn_always, torch.is_warn_always_enabled, (True, False)),
    "printing": (set_digits, printed, (2, 6)),
    "recursion": (
        lambda n: sys.setrecursionlimit(n),
        lambda: sys.getrecursionlimit(),
        (3000, 4000),
    ),
    "collector": (lambda on: gc.enable() if on else gc.disable(), gc.isenabled, (False, True)),
    "collector's pace": (lambda n: gc.set_threshold(n), gc.get_threshold, (900, 800)),
    "socket timeout": (
        lambda n: socket.setdefaulttimeout(n),
        socket.getdefaulttimeout,
        (5.0, None),
    ),
    "sharing of tensors": (
        lambda way: sharing.set_sharing_strategy(way),
        sharing.get_sharing_strategy,
        ("file_system", "file_descriptor"),
    ),
    "folder of torch.hub": (
        lambda place: torch.hub.set_dir(place),
        torch.hub.get_dir,
        ("/tmp/a", "/tmp/b"),
    ),
}
"""What programs set once and all alike."""


@pytest.mark.parametrize("name", SHARED)
def test_what_ranks_share_is_put_back_after_the_run(name: str) -> None:
    write, read, values = SHARED[name]
    before = read()
    other = next(value for value in values if value != before)

    def body() -> Any:
        dist.barrier()
        if dist.get_rank() == 1:
            write(other)
        dist.barrier()
        return read()

    found = phalanx.run(body, ranks=2)
    assert found[0] == found[1] != before
    assert read() == before
    with pytest.raises(phalanx.RankFailedError):
        phalanx.run(lambda: write(other) or 1 / 0, ranks=2)
    assert read() == before


def _mask() -> int:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        path = os.path.join(place, "file")
        os.close(os.open(path, os.O_CREAT, 0o666))
        return os.stat(path).st_mode & 0o777


def program(name: str) -> Callable[[int, Meet], list[Any]]:
    write, read, values = SETTINGS[name]

    def set_and_read(rank: int, meet: Meet) -> list[Any]:
        found = [read()]
        meet()
        if rank == 0:
            write(values[0])
            found.append(read())
        meet()
        found.append(read())
        meet()
        if rank == 1:
            write(values[1])
        meet()
        found.append(read())
        meet()
        return [str(each) for each in found]

    return set_and_read


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What this imports takes seconds, and every process below would do it anew."""
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())


@pytest.fixture(scope="module", autouse=True)
def start_method() -> Iterator[None]:
    """Until Python 3.12, who asks for it has chosen it, for all the tests that follow."""
    starting: Any = multiprocessing.context._default_context
    before = starting._actual_context
    yield
    starting._actual_context = before


@pytest.mark.parametrize("name", SETTINGS)
def test_what_one_rank_sets_is_its_own(name: str) -> None:
    read = SETTINGS[name][1]
    before = read()
    wanted = in_processes(program(name), 3)
    assert in_ranks(program(name), 3) == wanted
    assert read() == before, "the caller's setting was changed"
    assert in_ranks(program(name), 3, seed=2) == wanted
    assert wanted[0] != wanted[2], "the setting has no effect"


def test_settings_cost_nothing_until_somebody_changes_one() -> None:
    def look(change: bool) -> int:
        if change:
            torch.set_default_dtype(torch.float64)
            cudnn.benchmark = True
        return len(rank_settings.in_use)

    assert phalanx.run(look, False, ranks=2) == [0, 0]
    assert phalanx.run(look, True, ranks=2) == [2, 2]
    assert rank_settings.in_use == []


def test_settings_are_put_back_after_a_failure() -> None:
    before = torch.get_default_dtype(), cudnn.benchmark, sys.path[:], builtins.print, sys.stdout

    def fail() -> None:
        torch.set_default_dtype(torch.float64)
        cudnn.benchmark = True
        sys.path.insert(0, "/nowhere")
        builtins.print = lambda *args: None  # type: ignore[assignment]
        sys.stdout = io.StringIO()
        dist.barrier()
        raise ValueError("as planned")

    with pytest.raises(phalanx.RankFailedError, match="as planned"):
        phalanx.run(fail, ranks=3)
    assert (
        torch.get_default_dtype(),
        cudnn.benchmark,
        sys.path[:],
        builtins.print,
        sys.stdout,
    ) == before


def test_flags_as_contexts_and_by_names_that_were_imported_early() -> None:
    from torch import set_default_dtype, use_deterministic_algorithms

    def set_some() -> list[Any]:
        rank = dist.get_rank()
        with cudnn.flags(enabled=False, benchmark=bool(rank)):
            set_default_dtype(torch.float64 if rank else torch.float32)
            use_deterministic_algorithms(bool(rank))
            dist.barrier()
            deterministic = torch.are_deterministic_algorithms_enabled()
            found = [cudnn.benchmark, torch.ones(1).dtype, deterministic]
            dist.barrier()
        dist.barrier()
        return [*found, cudnn.enabled, cudnn.benchmark]

    after = [cudnn.enabled, cudnn.benchmark]
    assert phalanx.run(set_some, ranks=2) == [
        [False, torch.float32, False, *after],
        [True, torch.float64, True, *after],
    ]


def test_a_rank_keeps_its_settings_in_the_next_run_of_its_world() -> None:
    def set_first() -> None:
        if dist.get_rank() == 1:
            torch.set_default_dtype(torch.float64)
            dist.barrier()
        else:
            dist.barrier()

    with phalanx.World(ranks=2) as world:
        world.run(set_first)
        assert torch.get_default_dtype() == torch.float32
        assert world.run(torch.get_default_dtype) == [torch.float32, torch.float64]


def test_each_rank_may_set_the_number_of_threads_between_operators_once() -> None:
    def program() -> None:
        torch.set_num_interop_threads(3 + dist.get_rank())
        dist.barrier()
        with pytest.raises(RuntimeError, match="once"):
            torch.set_num_interop_threads(2)

    phalanx.run(program, ranks=2)


def test_a_helper_thread_changes_its_own_ranks_setting() -> None:
    def program() -> torch.dtype:
        if dist.get_rank() == 0:
            helper = threading.Thread(target=torch.set_default_dtype, args=(torch.float64,))
            helper.start()
            helper.join()
        dist.barrier()
        return torch.ones(1).dtype

    assert phalanx.run(program, ranks=3) == [torch.float64, torch.float32, torch.float32]


# -- Python's own names ---------------------------------------------------------------------


def test_a_rank_may_replace_print_and_the_streams() -> None:
    """As programs do that let only rank 0 print."""
    said: list[str] = []

    def program() -> list[str]:
        rank = dist.get_rank()
        plain = builtins.print

        def only_first(*args: Any, **kwargs: Any) -> None:
            if rank == 0:
                said.append(str(args[0]))

        builtins.print = only_first
        own = io.StringIO()
        with contextlib.redirect_stdout(own), contextlib.redirect_stderr(own):
            dist.barrier()
            sys.stdout.write(f"out of {rank}")
            dist.barrier()
            sys.stderr.write(f", err of {rank}")
            print("hello")
            dist.barrier()
        dist.barrier()
        assert sys.stdout is outer
        builtins.print = plain
        return [own.getvalue()]

    outer = sys.stdout
    assert phalanx.run(program, ranks=3) == [[f"out of {r}, err of {r}"] for r in range(3)]
    assert said == ["hello"]


def test_the_search_path_is_each_ranks_own(tmp_path: Path) -> None:
    def search(rank: int, meet: Meet) -> tuple[int, list[str]]:
        before = len(sys.path)
        sys.path.insert(0, f"/nowhere/{rank}")
        meet()
        sys.path = [f"/elsewhere/{rank}", *sys.path]
        meet()
        sys.path.append("/end")
        meet()
        return len(sys.path) - before, [*sys.path[:2], sys.path[-1]]

    before, entries = sys.path, list(sys.path)
    assert in_ranks(search, 2) == in_processes(search, 2)
    assert sys.path is before and sys.path == entries


# -- the current folder ---------------------------------------------------------------------


def folders(place: Path) -> Callable[[int, Meet], list[str]]:
    def program(rank: int, meet: Meet) -> list[str]:
        found = [os.getcwd()]
        meet()
        if rank < 2:
            os.makedirs(place / str(rank), exist_ok=True)
            os.chdir(place / str(rank))
        meet()
        found.append(os.getcwd())
        if rank < 2:
            Path("own.txt").write_text(str(rank))
            torch.save(rank, "saved.pt")
        meet()
        if rank < 2:
            found += [Path("own.txt").read_text(), str(torch.load("saved.pt"))]
        found.append(subprocess.run("pwd", capture_output=True, text=True).stdout.strip())
        box: list[str] = []
        helper = threading.Thread(target=lambda: box.append(os.getcwd()))
        helper.start()
        helper.join()
        meet()
        return [*found, *box]

    return program


def test_the_current_folder_is_each_ranks_own(tmp_path: Path) -> None:
    before = os.getcwd()
    assert in_ranks(folders(tmp_path), 3) == in_processes(folders(tmp_path), 3)
    assert in_ranks(folders(tmp_path), 3, seed=1) == in_processes(folders(tmp_path), 3)
    assert os.getcwd() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has folders per thread")
def test_a_thread_without_the_baton_is_in_its_ranks_folder(tmp_path: Path) -> None:
    if not folder.can_be_own():
        pytest.skip("this system lets threads not have folders of their own")
    looked, go = threading.Event(), threading.Event()

    def program() -> list[str]:
        rank = dist.get_rank()
        os.makedirs(tmp_path / str(rank), exist_ok=True)
        os.chdir(tmp_path / str(rank))
        found: list[str] = []
        dist.barrier()
        if rank == 0:

            def look() -> None:
                go.wait()
                found.append(os.getcwd())
                looked.set()

            helper = threading.Thread(target=look)
            helper.start()
            dist.barrier()
            helper.join()
        else:
            dist.barrier()
            go.set()
            while not looked.is_set():
                sum(range(100))
        return found

    assert phalanx.run(program, ranks=2)[0] == [str(tmp_path / "0")]


@pytest.fixture
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a container that does not allow it."""
    monkeypatch.setattr(folder, "can_be_own", lambda: False)
    rank_settings._all_settings.cache_clear()
    run_patches.state_patches.forget()
    yield
    rank_settings._all_settings.cache_clear()
    run_patches.state_patches.forget()


@pytest.mark.usefixtures("shared_folder")
def test_where_threads_share_the_folder_it_is_swapped(tmp_path: Path) -> None:
    def program(rank: int, meet: Meet) -> list[str]:
        meet()
        if rank < 2:
            os.makedirs(tmp_path / str(rank), exist_ok=True)
            os.chdir(tmp_path / str(rank))
        meet()
        found = [os.getcwd()]
        meet()
        found.append(subprocess.run("pwd", capture_output=True, text=True).stdout.strip())
        return found

    before = os.getcwd()
    assert in_ranks(program, 3) == in_processes(program, 3)
    assert os.getcwd() == before


def test_the_threads_of_a_crew_begin_in_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.engines.rank_thread_pools import make_thread_pool
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.threads.threads_engine import ThreadsEngine

    def go(context: Any) -> tuple[str, int]:
        found = os.getcwd()
        os.makedirs(str(context.rank), exist_ok=True)
        os.chdir(str(context.rank))
        mask = os.umask(0o011 * context.rank)
        dist.barrier()
        return found, mask

    thread_pool = make_thread_pool()
    found = []
    try:
        for name in ("a", "b", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / name)
            engine = ThreadsEngine(Settings(ranks=2), thread_pool=thread_pool)
            found.append(engine.run(go))
            engine.close()
    finally:
        thread_pool.close()
    mask = found[0][0][1]
    assert found == [[(str(tmp_path / name), mask)] * 2 for name in ("a", "b", "b")]


@pytest.mark.slow
def test_a_script_that_changes_the_folder(tmp_path: Path) -> None:
    source = """
        import os, torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        os.makedirs(f"out{rank}")
        os.chdir(f"out{rank}")
        dist.barrier()
        open("mine", "w").write(str(rank))
        dist.barrier()
        print(os.path.basename(os.getcwd()), os.listdir("."))
        dist.destroy_process_group()
    """
    found = run_script(tmp_path, source)
    assert found.returncode == 0, found.stderr
    assert "[0]   out0 ['mine']\n" in found.stdout
    assert "[1]   out1 ['mine']\n" in found.stdout
