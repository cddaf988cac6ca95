"""Exploring functions: what is found, what is counted, and that a token repeats a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.explore_options import ExploreOptions
from phalanx.explore.explorer import Explorer
from phalanx.explore.strategies import make_strategy
from phalanx.explore.subjects import FunctionSubject
from phalanx.explore.trace import Trace
from phalanx.options import Options


def first_of_all() -> int:
    """Fails if rank 2 is the first one to reach the counter."""
    store = dist.distributed_c10d._get_default_store()
    number = int(store.add("head", 1))
    if number == 1 and dist.get_rank() == 2:
        raise ValueError("rank 2 was first")
    dist.barrier()
    return number


def sum_of_ranks() -> float:
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return total.item()


def test_a_failure_that_depends_on_the_order_is_found() -> None:
    found = phalanx.explore(first_of_all, ranks=3, schedules=40, compare="none", raises=False)
    assert [each.kind for each in found.failures] == ["rank-failed"]
    assert "rank 2 raised ValueError: rank 2 was first" in found.failures[0].title
    assert (found.schedules, found.behaviours, found.complete) == (40, 6, False)


def test_it_is_raised_as_run_would_raise_it() -> None:
    with pytest.raises(phalanx.RankFailedError, match="rank 2 was first") as raised:
        phalanx.explore(first_of_all, ranks=3, schedules=40)
    assert raised.value.exploration.failures[0].token  # type: ignore[attr-defined]


def test_a_token_repeats_the_run() -> None:
    found = phalanx.explore(first_of_all, ranks=3, schedules=40, raises=False)
    token = found.failures[0].token
    again = phalanx.explore(first_of_all, ranks=3, replay=token, raises=False)
    assert again.schedules == 1
    assert again.failures[0].token == token
    line = f"phalanx.explore(first_of_all, ranks=3, replay={token!r})"
    assert again.failures[0].replay == line
    assert line in again.render()


def test_a_program_without_choices_has_one_behaviour() -> None:
    found = phalanx.explore(sum_of_ranks, ranks=3, schedules=5)
    assert (found.schedules, found.behaviours, found.results) == (1, 1, 1)
    assert found.complete, "no other order is possible, whatever the strategy"
    assert found.passed


def test_equal_seeds_explore_alike() -> None:
    def tokens(seed: int) -> list[str]:
        found = phalanx.explore(first_of_all, ranks=3, schedules=9, seed=seed, raises=False)
        return [each.token for each in found.failures]

    assert tokens(3) == tokens(3)


def test_the_parts_can_be_used_alone() -> None:
    options = Options(ranks=2, clock="virtual", record=False)
    subject = FunctionSubject(sum_of_ranks, (), {}, options)
    try:
        found = Explorer(subject, ExploreOptions(schedules=3)).explore(
            make_strategy("random", 1)
        )
    finally:
        subject.close()
    assert (found.schedules, found.passed) == (1, True)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schedules": 0}, "schedules=0"),
        ({"seconds": -1}, "seconds=-1"),
        ({"compare": ("value",)}, "there are 'values', 'output', 'parameters'"),
        ({"replay": "nonsense"}, "give the token"),
        ({"strategy": "dance"}, "strategy='dance'"),
        ({"record": "run.jsonl"}, "record='run.jsonl': one run is recorded, and this explores"),
        ({"engine": "processes"}, "engine='processes': explore has no such option: ranks that"),
        ({"strict": True}, "strict=True: explore has no such option: whatever checks find"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(phalanx.UsageError, match=text):
        phalanx.explore(sum_of_ranks, ranks=2, **given)  # type: ignore[arg-type]


def prints_and_fails() -> None:
    print("rank", dist.get_rank())
    first_of_all()


def test_a_replay_shows_what_ranks_print(capsys: pytest.CaptureFixture[str]) -> None:
    found = phalanx.explore(prints_and_fails, ranks=3, schedules=9, store=None, raises=False)
    assert capsys.readouterr().out == ""
    token = found.failures[0].token
    phalanx.explore(prints_and_fails, ranks=3, store=None, raises=False, replay=token)
    assert sorted(capsys.readouterr().out.splitlines()) == ["rank 0", "rank 1", "rank 2"]


def prints_its_place() -> None:
    store = dist.distributed_c10d._get_default_store()
    print("place", store.add("come", 1))


def test_a_replay_of_another_result_shows_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends well; what fails is that it differs from the default order."""
    given = {"ranks": 2, "store": None, "raises": False}
    found = phalanx.explore(prints_its_place, schedules=20, **given)  # type: ignore[arg-type]
    token = found.failures[0].token
    again = phalanx.explore(prints_its_place, replay=token, **given)  # type: ignore[arg-type]
    assert [each.kind for each in again.failures] == ["different-results"]
    assert again.failures[0].story == found.failures[0].story
    assert capsys.readouterr().out == "place 1\nplace 2\n"


def test_a_replay_is_recorded(tmp_path: Path) -> None:
    found = phalanx.explore(first_of_all, ranks=3, schedules=40, store=None, raises=False)
    token, file = found.failures[0].token, tmp_path / "run.jsonl.gz"
    phalanx.explore(first_of_all, ranks=3, replay=token, record=file, raises=False)
    with gzip.open(file, "rt") as lines:
        head, *rest = map(json.loads, lines)
    assert head["program"] == "first_of_all"
    assert "rank 2 was first" in json.dumps(rest[-1])


def test_failures_of_one_kind_are_summed_up() -> None:
    def failure(kind: str, schedules: int) -> ExplorationFailure:
        return ExplorationFailure(
            kind, "", "", "", error=AssertionError(), trace=Trace(), schedules=schedules
        )

    kinds = [("rank-failed", 25), ("deadlock", 1), ("rank-failed", 6)]
    failures = tuple(failure(*each) for each in kinds)
    found = Exploration(2, 40, 9, 1, False, failures, seconds=0.0)
    assert found.summary() == (
        "40 schedules explored, 9 behaviours: 31 end in an error (2 different ones), "
        "1 ends in a deadlock"
    )
    assert repr(found) == f"<Exploration of a program: {found.summary()}>"
