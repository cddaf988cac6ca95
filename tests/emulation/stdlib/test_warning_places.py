"""A warning that goes through our frames names the program's line."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import phalanx

each_engine = pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)


def places(caught: Any) -> list[tuple[bool, int]]:
    return [(each.filename == __file__, each.lineno) for each in caught]


def wrap() -> tuple[list[tuple[bool, int]], int]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DistributedDataParallel(nn.Linear(2, 2), check_reduction=True)
        line = sys._getframe().f_lineno - 1
    return places(caught), line


def use_while_in_flight() -> tuple[list[tuple[bool, int]], int]:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        functional.softmax(torch.ones(2, 2))
        line = sys._getframe().f_lineno - 1
    work.wait()
    return places(caught), line


@each_engine
@pytest.mark.parametrize("program", [wrap, use_while_in_flight])
def test_the_line_that_called(program, engine: str) -> None:
    for found, line in phalanx.run(program, ranks=2, engine=engine):
        assert found == [(True, line)]


def test_the_message_is_pythons_own_after_a_run() -> None:
    before = warnings.WarningMessage
    phalanx.run(wrap, ranks=1)
    assert warnings.WarningMessage is before
