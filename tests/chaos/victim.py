"""The program that suffers a fault: some steps of collectives, messages and a store.

    phalanx run -n 3 tests/chaos/victim.py FAULT RANK STEP [STEPS]

In its step STEP, rank RANK does what the function FAULT of this file does; with `none`, or with
a fault that comes from outside, all goes well. Each rank says which step it has done, so that
whoever watches can act at a moment of its choice. Needs nothing but torch.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

pause = 0.0


def a_step(number: int) -> None:
    """What every rank does in each step, and checks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((8,), float(rank))
    dist.all_reduce(tensor)
    assert tensor[0].item() == size * (size - 1) / 2, tensor
    work = dist.isend(torch.tensor([rank]), (rank + 1) % size)
    received = torch.zeros(1, dtype=torch.int64)
    dist.recv(received, (rank - 1) % size)
    assert work is not None
    work.wait()
    assert received.item() == (rank - 1) % size, received
    if number % 3 == 0:
        found: list[Any] = [None] * size
        dist.all_gather_object(found, (number, rank))
        assert found == [(number, r) for r in range(size)], found


# -- what a rank may do to itself and to others -----------------------------------------------


def none() -> None: ...


def slow() -> None:
    """From now on this rank takes its time, and the others wait for it."""
    global pause
    pause = 0.1


def raises() -> None:
    raise ValueError("the step failed")


def raises_base() -> None:
    raise BaseException("not even an Exception")


def raises_strange() -> None:
    class Strange(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise Strange


def raises_group() -> None:
    raise ImportError("a module is missing") from OSError("its file is")


def raises_interrupt() -> None:
    raise KeyboardInterrupt


def raises_generator_exit() -> None:
    raise GeneratorExit


def raises_stop_iteration() -> None:
    raise StopIteration


def raises_assertion() -> None:
    assert dist.get_rank() < 0, "a wrong result"


def raises_memory_error() -> None:
    torch.empty(1 << 60)


def exits() -> None:
    sys.exit()


def exits_with_3() -> None:
    sys.exit(3)


def exits_with_text() -> None:
    sys.exit("the rank gives up")


def exits_at_once() -> None:
    os._exit(0)


def exits_at_once_with_7() -> None:
    os._exit(7)


def recurses() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    deeper(0)


def fails_while_it_cleans_up() -> None:
    try:
        raise ValueError("the step failed")
    finally:
        raise OSError("and so did the cleaning up")


def fails_in_another_thread() -> None:
    def fail() -> None:
        raise ValueError("the helper failed")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def leaves_a_process() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"])


def dies_by_sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_with_semaphores() -> None:
    """They have names, which the resource tracker of multiprocessing removes."""
    context = multiprocessing.get_context("spawn")
    made = [context.Lock(), context.Queue()]
    os._exit(7 if made else 0)


def dies_by_sigsegv() -> None:
    ctypes.string_at(0)


def dies_by_abort() -> None:
    ctypes.CDLL(None).abort()


def gets_sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)


def gets_sigusr1() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGUSR1)


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def skips_a_collective() -> None:
    dist.barrier = lambda *args, **kwargs: None  # type: ignore[assignment]
    raise _NextStep


def makes_one_more() -> None:
    dist.barrier()


def calls_another() -> None:
    dist.broadcast(torch.zeros(8), 0)


def has_another_shape() -> None:
    dist.all_reduce(torch.zeros(9))


def has_another_dtype() -> None:
    dist.all_reduce(torch.zeros(8, dtype=torch.int32))


def uses_a_wrong_root() -> None:
    dist.broadcast(torch.zeros(8), dist.get_world_size())


def receives_in_vain() -> None:
    dist.recv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size(), tag=99)


def waits_for_a_key() -> None:
    dist.distributed_c10d._get_default_store().get("a key that nobody sets")


def sleeps() -> None:
    time.sleep(7)  # longer than the time limit, which stands still meanwhile


def computes_for_ever() -> None:
    while True:
        sum(range(1000))


def holds_the_lock_of_python() -> None:
    ctypes.PyDLL(None).sleep(1000)


def waits_in_native_code() -> None:
    ctypes.CDLL(None).sleep(1000)


def waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def destroys_its_group() -> None:
    dist.destroy_process_group()


def goes_on_after_an_error() -> None:
    try:
        dist.all_reduce(torch.zeros(9))
    except Exception as error:
        print("went on after", type(error).__name__, flush=True)
    dist.all_reduce(torch.zeros(9))


def replaces_stdout() -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise OSError("the disk is full")

        def flush(self) -> None: ...

    sys.stdout = Broken()


def closes_stdout() -> None:
    sys.stdout.close()


def closes_descriptor_1() -> None:
    os.close(1)


def eats_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 400), hard))
    while True:
        os.dup(0)


def removes_its_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)


def clears_the_environment() -> None:
    os.environ.clear()


def turns_warnings_into_errors() -> None:
    warnings.simplefilter("error")
    warnings.warn("an old name", DeprecationWarning, stacklevel=1)


def turns_the_collector_off() -> None:
    gc.disable()
    gc.set_threshold(0)


def replaces_print() -> None:
    builtins.print = None  # type: ignore[assignment]


def replaces_time() -> None:
    time.monotonic = lambda: 0.0
    time.sleep = lambda seconds: None


def forks_a_child() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def prints_strange_things() -> None:
    print("\x1b[2J\ud800".encode("utf-8", "replace").decode(), "\0", "x" * 100_000, flush=True)


class _NextStep(Exception):
    """The rank leaves this step out."""


def main() -> None:
    name, who, when, *more = sys.argv[1:]
    steps = int(more[0]) if more else 6
    fault: Callable[[], None] = globals().get(name, none)
    dist.init_process_group("gloo")
    rank, say = dist.get_rank(), builtins.print
    for number in range(steps):
        if number == (0 if name == "slow" else int(when)) and rank == int(who):
            try:
                fault()
            except _NextStep:
                continue
        a_step(number)
        time.sleep(pause)
        dist.barrier()
        if builtins.print is say:
            print(f"rank {rank} has done step {number}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
