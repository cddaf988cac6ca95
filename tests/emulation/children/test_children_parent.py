"""Programs that start some of their ranks and are one themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from phalanx.errors import CollectiveMismatchError, UsageError
from tests.emulation.children.test_children import launch_text


def test_a_program_that_is_a_rank_keeps_its_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_settings_of_it.py").write_text("rate = 1\n")
    text = """
import pickle
import _settings_of_it

def square(x):
    return x * x

def work(rank):
    init(rank, 2)
    import _settings_of_it as late
    print(rank, late is _settings_of_it, late.rate, sys.modules[__name__].square is square)
    print(rank, pickle.loads(pickle.dumps(square)) is square, flush=True)
    dist.barrier()

if __name__ == "__main__":
    _settings_of_it.rate = 2
    child = mp.get_context("spawn").Process(target=work, args=(1,))
    child.start()
    work(0)
    child.join()
    import _settings_of_it as last
    print(last is _settings_of_it, sys.modules["__main__"].square is square)
"""
    found = launch_text(tmp_path, text)
    assert found.error is None and [world.error for world in found.worlds] == [None]
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:-1]) == [
        "0 True",
        "0 True 2 True",
        "1 True",
        "1 True 1 True",
    ]
    assert lines[-1] == "True True"


ROUND = """
def work(rank, size):
    init(rank, size)
    total = torch.ones(1) * rank
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()

def play(count, *others):
    children = [mp.get_context("spawn").Process(target=work, args=(r, count)) for r in others]
    for child in children: child.start()
    result = work(0, count)
    for child in children: child.join()
    return result, [child.exitcode for child in children]
"""


def test_a_program_may_be_a_rank_again_and_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if __name__ == "__main__":
    print(play(3, 1, 2))
    print(play(2, 1))
    mp.spawn(work, (2,), nprocs=2)
    print(play(3, 1, 2))
    sys.exit(5)
"""
    found = launch_text(tmp_path, ROUND + text)
    assert capsys.readouterr().out.splitlines() == [
        "(3.0, [0, 0])",
        "(1.0, [0])",
        "(3.0, [0, 0])",
    ]
    assert [world.error for world in found.worlds] == [None] * 4
    assert [world.tally.collectives for world in found.worlds if world.tally] == [1] * 4
    assert isinstance(found.error, SystemExit) and found.error.code == 5


def test_every_round_of_a_program_that_is_a_rank_is_checked(tmp_path: Path) -> None:
    text = """
def fail(rank):
    init(rank, 2)
    dist.barrier() if rank else dist.all_reduce(torch.ones(2))

if __name__ == "__main__":
    play(2, 1)
    child = mp.get_context("spawn").Process(target=fail, args=(1,))
    child.start()
    fail(0)
"""
    first, second = launch_text(tmp_path, ROUND + text).worlds
    assert first.error is None
    assert isinstance(second.error, CollectiveMismatchError)


def test_a_program_that_was_a_rank_goes_on_with_what_it_has(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_late_module.py").write_text("value = 1\n")
    text = """
import logging, random, signal, warnings

def show():
    import _late_module
    print(os.environ.get("OF_A_ROUND"), _late_module.value, torch.get_default_dtype())
    print(torch.rand(1).item() == expected.pop(0), random.random() == numbers.pop(0))
    print(logging.getLogger("x").level, len(logging.getLogger("x").handlers))
    print(signal.getsignal(signal.SIGUSR1) is print, warnings.filters[0][0])
    print(helper.is_alive(), helper in mp.active_children(), len(expected))

if __name__ == "__main__":
    torch.manual_seed(3), random.seed(4)
    expected = [torch.rand(1).item() for _ in range(3)]
    numbers = [random.random() for _ in range(3)]
    torch.manual_seed(3), random.seed(4)
    child, queue = mp.get_context("spawn").Process(target=work, args=(1, 2)), mp.Queue()
    child.start()
    init(0, 2)
    import _late_module
    _late_module.value = 2
    os.environ["OF_A_ROUND"] = "yes"
    logging.getLogger("x").setLevel(10)
    logging.getLogger("x").addHandler(logging.NullHandler())
    signal.signal(signal.SIGUSR1, print)
    warnings.simplefilter("ignore")
    helper = mp.get_context("fork").Process(target=time.sleep, args=(60,))
    helper.start()
    queue.put(1)
    torch.set_deterministic_debug_mode(1)
    show()
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    child.join()

    child = mp.get_context("spawn").Process(target=work, args=(1, 2))
    child.start()
    show()
    queue.put(2)
    print(torch.get_deterministic_debug_mode())
    print(work(0, 2))
    show()
    queue.put(3)
    child.join()
    print([queue.get(timeout=10) for _ in range(3)])
    helper.kill()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    torch.set_deterministic_debug_mode(0)
"""
    found = launch_text(tmp_path, ROUND + text)
    torch.set_deterministic_debug_mode(0)  # what a program leaves behind ends with its process
    assert found.error is None and [world.error for world in found.worlds] == [None] * 2
    shown = ["yes 2 torch.float32", "True True", "10 1", "True ignore"]
    rounds = [[*shown, f"True True {left}"] for left in (2, 1, 0)]
    lines = [*rounds[0], *rounds[1], "1", "1.0", *rounds[2], "[1, 2, 3]"]
    assert capfd.readouterr().out.splitlines() == lines
    assert "OF_A_ROUND" not in os.environ and "_late_module" not in sys.modules


def test_rounds_that_overlap_are_refused(tmp_path: Path) -> None:
    text = """
def linger(rank):
    init(rank, 2)
    dist.destroy_process_group()
    time.sleep(30)

def say(rank):
    print(rank)

if __name__ == "__main__":
    context = mp.get_context("spawn")
    child = context.Process(target=linger, args=(1,), daemon=True)
    child.start()
    init(0, 2)
    dist.destroy_process_group()
    other = mp.get_context("fork").Process(target=say, args=(1,))
    other.start()
    other.join()
    init(0, 2)
"""
    (world,) = launch_text(tmp_path, ROUND + text).worlds
    cause = world.error.__cause__ if world.error else None
    assert isinstance(cause, UsageError)
    assert "Join them before you start others" in str(cause)


SLOW_START = """
import math

if __name__ == "__main__":
    kind = mp.get_context("spawn").Process
    children = [kind(target=work, kwargs=dict(rank=r, size=3)) for r in (1, 2)]
    for child in children: child.start()
    {prepare}
    print(work(0, 3))
"""


@pytest.mark.parametrize("prepare", ["time.sleep(0.5)", "math.factorial(60000)", "pass"])
def test_a_program_that_is_a_rank_may_prepare_first(
    prepare: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = launch_text(tmp_path, ROUND + SLOW_START.replace("{prepare}", prepare))
    assert [world.error for world in found.worlds] == [None] and found.error is None
    assert capsys.readouterr().out == "3.0\n"


def test_a_program_that_is_too_late_for_its_rank_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.emulation.children.spawned_ranks.LONG", 0.1)
    stands_still = "__import__('select').select([], [], [], 1)"
    found = launch_text(tmp_path, ROUND + SLOW_START.replace("{prepare}", stands_still))
    (world,) = found.worlds
    cause = world.error.__cause__ if world.error else None
    assert isinstance(cause, UsageError) and "rank 0 is the program itself" in str(cause)
    assert isinstance(found.error, UsageError)
    assert "processes that it has started are at work already" in str(found.error)
