"""How ranks came to their calls, and how others left: on threads and on processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx import callsite
from phalanx.checks import call_paths
from phalanx.cli.main import main
from phalanx.model import Deadlock, Mismatch, Site, Verdict
from phalanx.report.text import headline, render
from tests.engines.way_programs import team

each_engine = pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)


def verdict_of(program: Any, engine: str, ranks: int = 3) -> Verdict:
    with pytest.raises(phalanx.PhalanxError) as caught:
        phalanx.run(program, ranks=ranks, engine=engine)
    verdict = getattr(caught.value, "verdict", None)
    assert isinstance(verdict, Verdict)
    return verdict


def line_of(program: Any, text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    first = program.__code__.co_firstlineno
    return next(n for n, line in enumerate(source[first:], first + 1) if text in line)


# -- wrappers ---------------------------------------------------------------------------------


def both_in_wrappers() -> None:
    if dist.get_rank() == 1:
        team.wait_for_all()  # of one
    team.summed(torch.ones(2))  # of others


@each_engine
def test_a_mismatch_names_the_callers_of_wrappers(engine: str) -> None:
    verdict = verdict_of(both_in_wrappers, engine)
    assert isinstance(verdict, Mismatch)
    found = {each.ranks: (each.call.function, each.site.line) for each in verdict.callers}
    assert found == {
        (0, 2): ("summed", line_of(both_in_wrappers, "# of others")),
        (1,): ("wait_for_all", line_of(both_in_wrappers, "# of one")),
    }
    assert "called from" in render(verdict) and ">  team.wait_for_all()" in render(verdict)


def one_wrapper_from_two_lines() -> None:
    if dist.get_rank() == 1:
        team.summed(torch.ones(3))  # of one
    else:
        team.summed(torch.ones(2))  # of others


@each_engine
def test_a_wrapper_that_all_are_in_has_a_caller_for_each(engine: str) -> None:
    verdict = verdict_of(one_wrapper_from_two_lines, engine)
    lines = {each.ranks: each.site.line for each in verdict.callers}
    program = one_wrapper_from_two_lines
    assert lines == {(0, 2): line_of(program, "of others"), (1,): line_of(program, "of one")}


def sync(size: int) -> None:
    dist.all_reduce(torch.ones(size))


def a_function_of_the_same_file() -> None:
    if dist.get_rank() == 1:
        sync(3)  # of one
    else:
        sync(2)  # of others


@each_engine
def test_so_has_a_function_of_the_same_file_that_several_lines_call(engine: str) -> None:
    verdict = verdict_of(a_function_of_the_same_file, engine)
    program = a_function_of_the_same_file
    lines = {each.ranks: each.site.line for each in verdict.callers}
    assert lines == {(0, 2): line_of(program, "of others"), (1,): line_of(program, "of one")}


def step(size: int) -> None:
    dist.all_reduce(torch.ones(size))


def one_line_calls_it() -> None:
    step(2 + (dist.get_rank() == 1))


@each_engine
def test_a_function_that_one_line_calls_needs_no_caller(engine: str) -> None:
    assert verdict_of(one_line_calls_it, engine).callers == ()


def deadlock_in_a_wrapper() -> None:
    if dist.get_rank() != 1:
        team.wait_for_all()  # waits


@each_engine
def test_a_deadlock_names_them_too(engine: str) -> None:
    verdict = verdict_of(deadlock_in_a_wrapper, engine)
    (caller,) = verdict.callers
    assert caller.ranks == (0, 2)
    assert caller.site.line == line_of(deadlock_in_a_wrapper, "# waits")


# -- how ranks leave --------------------------------------------------------------------------


def by_a_return() -> None:
    team.summed(torch.ones(1))
    if not team.is_chief():
        return  # here
    team.summed(torch.ones(1))


def by_sys_exit() -> None:
    dist.barrier()
    if dist.get_rank() > 0:
        sys.exit(0)  # here
    dist.barrier()


@each_engine
@pytest.mark.parametrize(
    ("program", "how", "said"),
    [(by_a_return, "return", "returned at"), (by_sys_exit, "exit", "called sys.exit at")],
)
def test_how_ranks_left(program: Any, how: str, said: str, engine: str) -> None:
    verdict = verdict_of(program, engine)
    assert isinstance(verdict, Deadlock)
    (gone,) = [block for block in verdict.blocks if block.view.status == "finished"]
    left = gone.view.left
    assert left is not None and left.how == how
    assert left.site is not None and left.site.line == line_of(program, "# here")
    assert headline(verdict).startswith(f"ranks 1, 2 {said} {left.site}; rank 0 waits")
    told = dict(verdict.names).get("branch") or verdict.hint
    assert told is not None and "ranks 1, 2 left by" in told and "asks for the rank" in told


def by_one_of_two_returns() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        return
    if dist.get_rank() == 2:
        return
    dist.barrier()


def out_of_a_loop() -> None:
    for _ in range(3 - dist.get_rank()):
        dist.barrier()
        if dist.get_rank() > 5:
            return


def in_a_function_that_may_return() -> None:
    dist.barrier()
    if dist.get_rank() > 5:
        return
    _saves()


def _saves() -> None:
    if dist.get_rank() > 0:
        return
    dist.barrier()


@each_engine
@pytest.mark.parametrize(
    "program", [by_one_of_two_returns, out_of_a_loop, in_a_function_that_may_return]
)
def test_where_the_source_leaves_several_ways_none_is_named(program: Any, engine: str) -> None:
    verdict = verdict_of(program, engine)
    assert isinstance(verdict, Deadlock)
    gone = [block.view.left for block in verdict.blocks if block.view.status == "finished"]
    assert gone and all(left is None or left.site is None for left in gone)
    assert " returned; " in headline(verdict)


def only_the_first_goes_there() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


@each_engine
def test_who_waits_came_there_by_a_branch(engine: str) -> None:
    verdict = verdict_of(only_the_first_goes_there, engine)
    assert isinstance(verdict, Deadlock)
    told = dict(verdict.names).get("branch") or verdict.hint
    assert told is not None and "asks for the rank" in told and "rank 0 came there" in told


SCRIPTS = {
    "the_end": (
        "if dist.get_rank() == 0:\n    dist.barrier()\n",
        "ranks 1, 2 came to the end of the script; rank 0 waits for them in call #0",
    ),
    "exit": (
        "import sys\nif dist.get_rank():\n    sys.exit()\ndist.barrier()\n",
        "ranks 1, 2 called sys.exit at program.py:5; rank 0 waits for them in call #0",
    ),
    "os_exit": (
        "import os\nif dist.get_rank():\n    os._exit(0)\ndist.barrier()\n",
        "ranks 1, 2 called os._exit at program.py:5; rank 0 waits for them in call #0",
    ),
    "handler": (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))\n"
        "if dist.get_rank() == 1:\n    os.kill(os.getpid(), signal.SIGTERM)\ndist.barrier()\n",
        "rank 1 called sys.exit at program.py:4 in its handler of SIGTERM; "
        "ranks 0, 2 wait for it in call #0",
    ),
    "caught": (
        "import os, signal, time\ncaught = []\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))\n"
        "def train():\n"
        "    while True:\n"
        "        if dist.get_rank() == 1:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "            while not caught: time.sleep(0.001)\n"
        "        if caught:\n"
        "            return\n"
        "        dist.barrier()\n"
        "train()\n",
        "rank 1 returned at program.py:12 after SIGTERM; ranks 0, 2 wait for it in call #0",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_how_a_script_was_left(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    source, said = SCRIPTS[name]
    start = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    (tmp_path / "program.py").write_text(start + source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(["run", "--no-record", "--quiet", "-n", "3", "program.py"]) == 3
    left, _, waiting = capsys.readouterr().err.splitlines()[0].partition("; ")
    # A rank that has not come yet when the others are proved stuck is not among them.
    all_left = f"DeadlockError: {said.partition('; ')[0]}"
    assert left in {
        all_left.replace("ranks 1, 2", who) for who in ("ranks 1, 2", "rank 1", "rank 2")
    }
    assert waiting in (said.partition("; ")[2], "rank 0 waits for it in call #0")


def test_a_line_of_a_library_has_the_users_line_for_its_caller() -> None:
    from phalanx.checks.call_paths import find_caller
    from phalanx.model import StackLine

    user = StackLine(Site("train.py", 9, "main", "accelerator.gather(x)"))
    library = StackLine(Site("accelerate/accelerator.py", 3, "gather"), installed=True)
    deep = StackLine(Site("utils/operations.py", 7, "_gather"), installed=True)
    assert find_caller((user, library, deep)) == user.site
    assert find_caller((library, deep)) is None


# -- a call more, by a branch that asks for the rank ------------------------------------------


def one_more_by_a_branch() -> None:
    for step in range(3):
        team.summed(torch.ones(4))
        if dist.get_rank() == 0 and step == 1:
            print(team.summed(torch.ones(())))


@each_engine
def test_a_call_more_in_a_branch_is_that_of_its_rank(engine: str) -> None:
    verdict = verdict_of(one_more_by_a_branch, engine, ranks=2)
    assert isinstance(verdict, Mismatch)
    assert verdict.ranks == (0,) and verdict.differs == ("shape",)
    branch = line_of(one_more_by_a_branch, "step == 1")
    ((_, told),) = [each for each in verdict.names if each[0] == "branch"]
    assert told.startswith(
        f"tests/engines/test_call_paths.py:{branch} asks for the rank, and only rank 0 is in it"
    )


def broadcast_by_the_first() -> None:
    for step in range(3):
        if team.is_chief() and step == 2:
            dist.broadcast(torch.ones(2), src=0)
        dist.all_reduce(torch.ones(2))


@each_engine
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_branch_of_the_odd_ranks_comes_first_and_no_counts(engine: str, ranks: int) -> None:
    verdict = verdict_of(broadcast_by_the_first, engine, ranks=ranks)
    assert isinstance(verdict, Mismatch) and verdict.ranks == (0,)
    assert verdict.uneven is None, "nobody has left the loop"
    line = line_of(broadcast_by_the_first, "step == 2")
    third = render(verdict).splitlines()[2]
    assert third.startswith(f"  branch    tests/engines/test_call_paths.py:{line} asks for")


def meet_after_a_return() -> None:
    if dist.get_rank() == 0:
        team.summed(torch.ones(3))
        return
    team.summed(torch.ones(2))


def meet_in_two_arms() -> None:
    if dist.get_rank() == 0:
        team.summed(torch.ones(3))
    else:
        team.summed(torch.ones(2))


@pytest.mark.parametrize("program", [meet_after_a_return, meet_in_two_arms])
def test_calls_that_are_meant_to_meet_blame_nobody(program: Any) -> None:
    assert verdict_of(program, "threads", ranks=2).ranks == ()


# -- steps of a loop that a rank left out -----------------------------------------------------


def one_skips_a_step() -> None:
    for step in range(4):
        if dist.get_rank() == 1 and step == 2:
            continue
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def one_leaves_the_group() -> None:
    pair = dist.new_group([0, 1])
    for step in range(2):
        exchange(torch.ones(4 if step + dist.get_rank() < 2 else 0), pair)
    dist.barrier()


def exchange(x: torch.Tensor, pair: Any) -> None:
    if len(x) and dist.get_rank() < 2:
        dist.all_reduce(x, group=pair)


@each_engine
@pytest.mark.parametrize(
    ("program", "ranks"), [(one_skips_a_step, 2), (one_leaves_the_group, 4)]
)
def test_who_left_a_step_out_is_at_fault(program: Any, ranks: int, engine: str) -> None:
    verdict = verdict_of(program, engine, ranks)
    assert verdict.ranks == (1,)
    assert headline(verdict).startswith("rank 1 ")


# -- deep recursions --------------------------------------------------------------------------


def deep(frames: int) -> None:
    if frames:
        deep(frames - 1)
    else:
        dist.barrier()


def one_is_deep(frames: int) -> None:
    if dist.get_rank() == 1:
        deep(frames)
    else:
        dist.all_reduce(torch.ones(1))


@pytest.fixture
def deep_recursions() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("deep_recursions")
@pytest.mark.parametrize(
    ("frames", "owner", "name", "most"),
    [
        (5000, callsite, "stack_line", callsite.MOST_FRAMES),
        (300, call_paths, "branch_at_line", 20),
    ],
)
def test_the_lines_of_a_deep_recursion_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, frames: int, owner: Any, name: str, most: int
) -> None:
    looks: list[Any] = []
    look = getattr(owner, name)

    def counting(*args: Any) -> Any:
        looks.append(args)
        return look(*args)

    monkeypatch.setattr(owner, name, counting)
    with pytest.raises(phalanx.CollectiveMismatchError):
        phalanx.run(one_is_deep, frames, ranks=2)
    assert 0 < len(looks) <= most
