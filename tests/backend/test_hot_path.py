"""How much of our Python runs for one `all_reduce`: it may shrink, and must not grow."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import phalanx

MOST_CALLS = 25
"""Functions of ours that one rank calls for an `all_reduce`, with the hand-over to the next."""

OURS = str(Path(phalanx.__file__).parent)
RANKS, WARM, TIMES = 4, 300, 20


def test_an_all_reduce_takes_few_of_our_calls() -> None:
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[frame.f_code.co_name] += 1

    def program() -> None:
        tensor = torch.ones(4)
        for _ in range(WARM):
            dist.all_reduce(tensor)
        sys.setprofile(count)
        for _ in range(TIMES):
            dist.all_reduce(tensor)
        sys.setprofile(None)

    phalanx.run(program, ranks=RANKS)
    each = {name: times / (RANKS * TIMES) for name, times in calls.most_common()}
    assert sum(each.values()) <= MOST_CALLS, each
