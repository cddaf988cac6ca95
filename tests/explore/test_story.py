"""Failures as stories: golden files, made by programs on ranks.

PHALANX_UPDATE_GOLDEN=1 pytest tests/explore/test_story.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.explore.failures.story import story_lines

GOLDEN = Path(__file__).parent / "golden"


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def lost_update() -> None:
    queue = store()
    if dist.get_rank() == 0:
        queue.set("done", "0")
    dist.barrier()
    done = int(queue.get("done"))
    queue.set("done", str(done + 1))
    dist.barrier()
    assert int(queue.get("done")) == dist.get_world_size()


def overtaken() -> None:
    if dist.get_rank() > 0:
        dist.send(torch.tensor([float(dist.get_rank())]), dst=0)
        return
    for expected in range(1, dist.get_world_size()):
        gradient = torch.zeros(1)
        source = dist.recv(gradient)
        assert source == expected, f"a message of rank {source}"


def leader_hangs() -> None:
    if store().add("votes", 1) == 1 and dist.get_rank() == 2:
        dist.barrier()
    dist.barrier()


def which_was_first() -> list[int]:
    return [store().add("head", 1), 7]


def always_wrong() -> None:
    raise ValueError("in every order")


def prints_its_place() -> None:
    print("ready")
    print("place", store().add("place", 1))


def trains_by_place() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    (weight * store().add("place", 1)).sum().backward()
    optimizer.step()


def invariant() -> None:
    held = store().add("lock", 1)
    phalanx.always(held < 2, "two ranks hold the lock", held)
    store().add("lock", -1)


def overtakes_in_the_third_round() -> None:
    mine = 0
    for _ in range(3):
        mine = store().add("rounds", 1)
        dist.barrier()
    assert (dist.get_rank(), mine) != (1, 5), "rank 1 begins the third round"


CASES: list[tuple[Callable[[], Any], int]] = [
    (lost_update, 4),
    (overtaken, 4),
    (leader_hangs, 3),
    (which_was_first, 3),
    (always_wrong, 2),
    (prints_its_place, 2),
    (trains_by_place, 2),
    (invariant, 3),
    (overtakes_in_the_third_round, 2),
]


@pytest.mark.parametrize(
    ("program", "ranks"), CASES, ids=lambda each: getattr(each, "__name__", "")
)
def test_the_story_is_that_of_the_golden_file(
    program: Callable[[], Any], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    found = phalanx.explore(
        program, ranks=ranks, strategy="random", schedules=100, raises=False, store=None
    )
    text = re.sub(r"\.py:\d+", ".py:N", found.render()) + "\n"
    text = text.partition("explored")[2].partition("\n\n")[2]
    path = GOLDEN / f"{program.__name__}.txt"
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        path.write_text(text, encoding="ascii")
    assert text == path.read_text(encoding="ascii")
    assert max(map(len, text.splitlines()[1:])) <= 88


def test_the_error_that_is_raised_tells_the_story() -> None:
    with pytest.raises(phalanx.RankFailedError) as raised:
        phalanx.explore(overtaken, ranks=3, schedules=100, store=None)
    found = raised.value.exploration  # type: ignore[attr-defined]
    (failure,) = found.failures
    assert str(raised.value).startswith(failure.story)
    assert failure.token in str(raised.value).splitlines()[-1]


def test_a_long_story_is_cut() -> None:
    from phalanx.explore.failures.story import Sentence

    lines = story_lines([Sentence(f"sentence {number}") for number in range(30)])
    assert lines[-1] == "  ... and 18 choices more"
    assert len(lines) == 14


def test_no_golden_file_is_left_over() -> None:
    names = {program.__name__ for program, _ in CASES}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == names
