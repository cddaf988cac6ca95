"""How much of our Python runs for one `all_reduce`: it may shrink, and must not grow."""

from __future__ import annotations

import json
import sys

from tests.forked_programs import run_forked

MOST_CALLS = 22
"""Functions of ours that one rank calls for an `all_reduce`, with the hand-over to the next."""

PROGRAM = """
import json, sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

import phalanx

ours, calls, times = str(Path(phalanx.__file__).parent), Counter(), 20

def count(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(ours):
        calls[frame.f_code.co_name] += 1

def program():
    tensor = torch.ones(4)
    for _ in range(300):
        dist.all_reduce(tensor)
    sys.setprofile(count)
    for _ in range(times):
        dist.all_reduce(tensor)
    sys.setprofile(None)

phalanx.run(program, ranks=4)
print(json.dumps({name: n / (4 * times) for name, n in calls.most_common()}))
"""
"""A program of its own: what tests before it have imported would be swapped at hand-overs."""


def test_an_all_reduce_takes_few_of_our_calls() -> None:
    ran = run_forked([sys.executable, "-c", PROGRAM], timeout=50)
    each = json.loads(ran.stdout)
    assert 0 < sum(each.values()) <= MOST_CALLS, each
