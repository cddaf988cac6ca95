"""What goes between a caller and ranks that have packages of their own, with `isolate=`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx

PACKAGE = """
STATE = []

class Wrong(ValueError):
    def __init__(self, what, number):
        super().__init__(what, number)

class Strange(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")

class Conf:
    def __init__(self, number):
        self.number = number

def begin(number):
    if STATE:
        raise Wrong("already begun", number)
    STATE.append(number)
    return Conf(number)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "mine.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("mine")
    del sys.modules["mine"]


def test_a_function_of_the_package_is_the_rank_s_own(mine) -> None:
    mine.begin(0)
    found = phalanx.run(mine.begin, 7, ranks=3, isolate=("mine",))
    assert [type(each) is mine.Conf for each in found] == [True] * 3
    assert [each.number for each in found] == [7] * 3
    assert mine.STATE == [0]


def test_arguments_and_results_become_the_other_side_s(mine) -> None:
    def body(given: dict[str, Any]) -> dict[str, Any]:
        import mine as own

        assert type(given["conf"]) is own.Conf
        number = given["conf"].number + dist.get_rank()
        return {"conf": own.Conf(number), "kind": own.Conf, "tensor": given["tensor"]}

    given = {"conf": mine.Conf(1), "tensor": torch.ones(2)}
    for rank, found in enumerate(phalanx.run(body, given, ranks=2, isolate=("mine",))):
        assert type(found["conf"]) is found["kind"] is mine.Conf
        assert found["conf"].number == 1 + rank
        assert found["tensor"] is given["tensor"]  # no copy


def test_what_holds_nothing_of_the_package_is_not_touched(mine) -> None:
    given = {"list": [1, 2]}
    assert all(
        found is given
        for found in phalanx.run(lambda each: each, given, ranks=2, isolate=("mine",))
    )


class Unwilling:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def test_what_cannot_be_pickled_stays_what_it_is(mine) -> None:
    def body(given: Any) -> Any:
        import mine as own

        return [own.Conf(1), given]

    given = Unwilling()
    conf, back = phalanx.run(body, given, ranks=2, isolate=("mine",))[0]
    assert back is given
    assert type(conf) is not mine.Conf


def test_errors_are_the_caller_s(mine) -> None:
    def body() -> None:
        import mine as own

        own.begin(1)
        if dist.get_rank() == 1:
            own.begin(2)

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(body, ranks=2, isolate=("mine",))
    error = caught.value
    assert isinstance(error.__cause__, mine.Wrong)
    assert error.__cause__ is error.failures[1]
    assert error.__cause__.args == ("already begun", 2)
    assert error.__cause__.__traceback__ is not None
    assert "rank 1 raised Wrong: ('already begun', 2)" in str(error)


def test_an_error_that_cannot_be_pickled_is_the_rank_s(mine) -> None:
    def body() -> None:
        import mine as own

        raise own.Strange(code=3)

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(body, ranks=2, isolate=("mine",))
    assert str(caught.value.failures[0]) == "code 3"
    assert not isinstance(caught.value.failures[0], mine.Strange)
