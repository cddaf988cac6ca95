"""What an exploration is asked for, as a value: what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.explore.explore_options import COMPARED, ExploreOptions
from phalanx.faults import call, kill


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schedules": 0}, "schedules=0: give how many schedules to try as a whole number"),
        ({"schedules": True}, "schedules=True: give how many schedules"),
        ({"schedules": 2.5}, "schedules=2.5: give how many schedules"),
        ({"seconds": 0}, "seconds=0: give how many seconds to go on as a number above 0"),
        ({"seconds": float("inf")}, "seconds=inf: give how many seconds"),
        ({"seconds": "60"}, "seconds='60': give how many seconds"),
        ({"strategy": "dfs"}, "strategy='dfs': choose one of 'pos', 'pct', 'random', 'exhau"),
        ({"seed": -1}, "seed=-1: a seed is a whole number from 0 on"),
        (
            {"compare": "value"},
            "compare='value': there are 'values', 'output', 'parameters'; d",
        ),
        ({"compare": 3}, "compare=3: give a list, or names with commas between them"),
        ({"faults": "kil"}, "there is no kind 'kil'; choose among kill"),
        ({"faults": "kill,rain"}, "there is no kind 'rain'; choose among kill"),
        ({"faults": "kill(rank=1)"}, "kill(rank=1): write it like kill(rank=2, at=call(17))"),
        (
            {"faults": ["kill", kill(rank=1, at=call(2))]},
            "or faults that every run has, an",
        ),
        ({"faults": [3]}, "give faults, e.g. faults=[kill(rank=2, at=call(17))]"),
        ({"same_result": 1}, "same_result=1: give True or False"),
        ({"store": ""}, "store='': give the folder that keeps failures, e.g. store='.phalanx'"),
        ({"record": "a.gz"}, "record='a.gz': one run is recorded, and this explores many; gi"),
        ({"record": True, "replay": "3-a7f3"}, "record=True: give the name of a file"),
        ({"replay": ""}, "replay='': give the token that a failure's report ends with"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as error:
        ExploreOptions.of(**given)
    assert text in str(error.value)


def test_names_come_as_a_list_or_with_commas() -> None:
    assert ExploreOptions.of(faults="kill, delay").faults == ("kill", "delay")
    assert ExploreOptions.of(faults=["kill"], compare=["values"]).compare == ("values",)
    assert ExploreOptions.of(compare="none").compare == ()
    assert ExploreOptions.of().compare == COMPARED


def test_kinds_of_faults_or_a_plan() -> None:
    plan = (kill(rank=1, at=call(2)),)
    assert ExploreOptions.of(faults=plan).plan == plan
    assert ExploreOptions.of(faults=plan[0]).plan == plan
    assert ExploreOptions.of(faults="kill(rank=1, at=call(2))").plan == plan
    drawn = ExploreOptions.of(faults="kill,delay")
    assert (drawn.fault_kinds, drawn.plan) == (("kill", "delay"), ())


def test_how_many_schedules_follows_from_what_was_said() -> None:
    assert ExploreOptions().most_schedules == 200
    assert ExploreOptions(schedules=7, seconds=60).most_schedules == 7
    assert ExploreOptions(seconds=60).most_schedules is None
    assert ExploreOptions(strategy="exhaustive").most_schedules == 10_000


def test_paths_are_taken_as_text() -> None:
    asked = ExploreOptions.of(store=Path("kept"), record=Path("a.gz"), replay="3-a7f3")
    assert (asked.store, asked.record) == ("kept", "a.gz")
