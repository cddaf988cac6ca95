"""Signal handlers in ranks: each rank's own, as if it were a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.session import context_here
from phalanx.emulation.stdlib import signals
from phalanx.errors import RankExited, RankFailedError


def test_a_timer_that_a_rank_armed_ends_with_the_run() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            signal.setitimer(signal.ITIMER_VIRTUAL, 1000.0)

    phalanx.run(body, ranks=2)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_timer_that_the_program_armed_goes_on() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000.0)
    try:
        phalanx.run(dist.barrier, ranks=2)
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 900.0
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def test_a_rank_sets_and_asks_for_its_own_handlers() -> None:
    def body() -> tuple[Any, ...]:
        rank = dist.get_rank()
        seen: list[tuple[int, int]] = []

        def handler(number: int, frame: Any) -> None:
            seen.append((rank, number))

        first = signal.signal(signal.SIGUSR1, handler)
        assert signal.getsignal(signal.SIGUSR1) is handler
        dist.barrier()
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        if rank == 0:
            assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is handler
            os.kill(os.getpid(), signal.SIGUSR1)
        return first, seen

    before = signal.getsignal(signal.SIGUSR1)
    for _ in range(2):
        found = phalanx.run(body, ranks=3)
        assert found == [(before, [(rank, signal.SIGUSR1)] * 2) for rank in range(3)]
    assert signal.getsignal(signal.SIGUSR1) is before


def _soon(number: int, ready: Callable[[], bool]) -> threading.Thread:
    """Send this process a signal from outside of the run, once it is ready for it."""

    def send() -> None:
        while not ready():
            time.sleep(0.002)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("waiting", ["sleeping", "parked", "blocked", "working"])
def test_a_signal_from_outside_runs_every_ranks_handler(waiting: str) -> None:
    """A process that shows it as a checkpoint on preemption does: a flag, read in the loop."""
    ready: list[int] = []

    def body() -> int:
        rank = dist.get_rank()
        stop: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: stop.append(rank))
        dist.barrier()
        ready.append(rank)
        if waiting == "parked" and rank:
            dist.barrier()
        while not stop or waiting == "working":
            if waiting == "sleeping" or waiting == "parked":
                time.sleep(0.01)
            elif waiting == "blocked":
                threading.Event().wait(0.02)
            else:
                dist.all_reduce(torch.ones(1))
                break_off = torch.tensor(float(bool(stop)))
                dist.all_reduce(break_off)
                if break_off:
                    break
        if waiting == "parked" and not rank:
            dist.barrier()
        dist.barrier()
        return stop[0] if stop else rank

    sender = _soon(signal.SIGTERM, lambda: len(ready) == 3)
    assert phalanx.run(body, ranks=3) == [0, 1, 2]
    sender.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_rank_without_a_handler_ends_as_a_process_would() -> None:
    ready: list[int] = []

    def body() -> None:
        if dist.get_rank() == 0:
            signal.signal(signal.SIGUSR2, lambda number, frame: None)
        dist.barrier()
        ready.append(1)
        while True:
            time.sleep(0.01)

    sender = _soon(signal.SIGUSR2, lambda: len(ready) == 2)
    with pytest.raises(RankFailedError, match="rank 1 called the default of SIGUSR2"):
        phalanx.run(body, ranks=2)
    sender.join()


def test_a_rank_that_sends_itself_what_nobody_handles_ends() -> None:
    def body() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.barrier()

    with pytest.raises(RankFailedError, match=r"rank 1 called os\.kill on itself, SIGTERM"):
        phalanx.run(body, ranks=2)


def ring_in(seconds: float) -> None:
    """As `signal.alarm`, which takes whole seconds."""
    context = context_here()
    assert context is not None
    signals.set_alarm(context, seconds)


def test_alarms_are_each_ranks_own_and_may_raise() -> None:
    class Late(Exception):
        pass

    def late(number: int, frame: Any) -> None:
        raise Late(dist.get_rank())

    def body() -> Any:
        rank = dist.get_rank()
        signal.signal(signal.SIGALRM, late)
        assert signal.alarm(100) == 0
        assert signal.alarm(0) == 100
        ring_in(0.05 if rank else 50.0)
        try:
            time.sleep(0.5)
            return signal.alarm(0) > 40
        except Late as error:
            return error.args

    assert phalanx.run(body, ranks=2) == [True, (1,)]


def test_an_alarm_interrupts_a_wait_for_others() -> None:
    def body() -> int:
        rung: list[int] = []
        signal.signal(signal.SIGALRM, lambda number, frame: rung.append(1))
        if dist.get_rank() == 0:
            ring_in(0.02)
        else:
            time.sleep(0.3)
        dist.barrier()
        return len(rung)

    assert phalanx.run(body, ranks=2) == [1, 0]


def _compute_until(done: Callable[[], bool], limit: float = 20.0) -> bool:
    """Without ever waiting."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if done():
            return True
    return False


def test_a_limit_for_a_computation_is_raised_inside_it() -> None:
    class Late(Exception):
        pass

    def late(number: int, frame: Any) -> None:
        raise Late("after", frame.f_code.co_name)

    def body() -> list[Any]:
        signal.signal(signal.SIGALRM, late)
        seen = []
        for _ in range(3):
            ring_in(0.02)
            try:
                _compute_until(lambda: False)
            except Late as error:
                seen.append((type(error), error.args[0]))
            finally:
                signal.alarm(0)
            dist.barrier()
        return seen

    before = set(threading.enumerate())
    assert phalanx.run(body, ranks=2) == [[(Late, "after")] * 3] * 2
    assert set(threading.enumerate()) <= before


def test_a_rank_that_computes_sees_what_its_handler_has_set() -> None:
    def body() -> tuple[int, bool]:
        rank = dist.get_rank()
        stop: list[int] = []
        signal.signal(signal.SIGALRM, lambda number, frame: stop.append(dist.get_rank()))
        ring_in(0.02)
        came = _compute_until(lambda: bool(stop))
        dist.barrier()
        return rank - stop[0], came

    assert phalanx.run(body, ranks=2) == [(0, True)] * 2


def test_an_alarm_that_was_taken_back_does_not_ring() -> None:
    def body() -> list[int]:
        rung: list[int] = []
        signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
        ring_in(0.005)
        end = time.monotonic() + 0.02
        while time.monotonic() < end:  # less than a rank has to come by
            pass
        signal.alarm(0)
        dist.barrier()
        time.sleep(0.05)
        return rung

    assert phalanx.run(body, ranks=2) == [[], []]


def test_collectives_are_not_harmed_by_what_is_thrown_in() -> None:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError

    def body() -> int:
        rank, rung = dist.get_rank(), 0
        signal.signal(signal.SIGALRM, late)
        for step in range(12):
            ring_in(0.002 * step + 0.001)
            try:
                _compute_until(lambda: torch.ones(8).sum().item() == 0)
            except TimeoutError:
                rung += 1
            signal.alarm(0)
            found = torch.tensor([float(step + rank)])
            dist.all_reduce(found)
            assert found.item() == 2 * step + 1
        return rung

    assert phalanx.run(body, ranks=2) == [12, 12]


def test_a_loop_of_asyncio_runs_and_tells_what_it_cannot_do() -> None:
    async def main() -> str:
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError) as caught:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)
        return str(caught.value)

    (text,) = set(phalanx.run(lambda: asyncio.run(main()), ranks=2))
    assert "main thread" in text


def test_signals_without_a_name() -> None:
    """As Lightning does, which sets all that there are."""
    number = int(signal.SIGRTMIN) + 1

    def body() -> tuple[Any, ...]:
        seen: list[int] = []
        signal.signal(number, lambda got, _: seen.append(got))
        signal.raise_signal(number)
        signal.signal(number, signal.SIG_DFL)
        with pytest.raises(RankExited, match=f"signal {number}"):
            signal.raise_signal(number)
        return tuple(seen)

    assert phalanx.run(body, ranks=2) == [(number,), (number,)]


def test_wrong_arguments_are_refused_as_in_a_process() -> None:
    def body() -> None:
        with pytest.raises(ValueError):
            signal.signal(1000, print)
        with pytest.raises(TypeError):
            signal.signal(signal.SIGTERM, "no handler")  # type: ignore[arg-type]
        with pytest.raises(OSError):
            signal.signal(signal.SIGKILL, print)

    phalanx.run(body, ranks=1)


SCRIPT = """
import os, signal, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
stop = []
signal.signal(signal.{name}, lambda number, frame: stop.append(number))
dist.barrier()
print("ready", flush=True)
while not stop:
    time.sleep(0.01)
print("saved", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_script_saves_on_a_signal(name: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(name=name))
    command = [sys.executable, "-m", "phalanx", "run", "-n", "2", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "[0-1] ready\n"
        run.send_signal(getattr(signal, name))
        shown = {line[6:] if line[2:3] == "]" else line for line in run.stdout}
        assert shown <= {"saved\n", "[0-1] saved\n"} and shown
        assert run.wait(60) == 0


def test_a_rank_s_thread_is_its_main_thread() -> None:
    def body() -> bool:
        found: list[threading.Thread] = []
        helper = threading.Thread(target=lambda: found.append(threading.main_thread()))
        helper.start()
        helper.join()
        asyncio.run(asyncio.sleep(0.01))  # which asks, and sets a handler
        dist.barrier()
        return found == [threading.current_thread()] == [threading.main_thread()]

    assert phalanx.run(body, ranks=3) == [True] * 3
    assert threading.current_thread() is threading.main_thread()
