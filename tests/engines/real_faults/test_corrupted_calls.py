"""What is flipped of a call: which tensors, in which arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from phalanx.engines.real_faults.corrupted_calls import CorruptedCall, given_by, taken_by
from phalanx.engines.remote.c10d_arguments import Parts
from phalanx.faults import corrupt

GIVEN = corrupt(rank=0, call=1, part="contribution")
TAKEN = corrupt(rank=0, call=1)


def ones() -> torch.Tensor:
    return torch.ones(4)


def is_whole(tensor: torch.Tensor) -> bool:
    return torch.equal(tensor, ones())


def test_what_is_only_given_is_flipped_in_a_copy():
    source, into = ones(), ones()
    call = CorruptedCall([GIVEN], Parts("all_gather_into_tensor", [source], [into]), 0)
    given: dict[str, Any] = {"output_tensor": into, "input_tensor": source, "other": 3}
    sent = call.flip_contribution(given)
    assert is_whole(source) and is_whole(into)
    assert sent["output_tensor"] is into and sent["other"] == 3
    assert not is_whole(sent["input_tensor"])
    assert not call.has_result


def test_what_the_result_comes_into_is_flipped_in_place():
    tensor = ones()
    call = CorruptedCall([GIVEN], Parts("all_reduce", [tensor]), 0)
    assert call.flip_contribution({"tensors": [tensor]})["tensors"][0] is tensor
    assert not is_whole(tensor)


def test_the_source_of_a_broadcast_keeps_its_tensor():
    tensor = ones()
    call = CorruptedCall([GIVEN], Parts("broadcast", [tensor], root=0), 0)
    assert not is_whole(call.flip_contribution({"tensors": [tensor]})["tensors"][0])
    assert is_whole(tensor)


def test_lists_of_lists_keep_their_shape():
    parts = [ones(), ones()]
    call = CorruptedCall([GIVEN], Parts("scatter", parts, [ones()], root=0), 0)
    (sent,) = call.flip_contribution({"input_tensors": [parts]})["input_tensors"]
    assert len(sent) == 2 and sum(map(is_whole, sent)) == 1
    assert all(map(is_whole, parts))


def test_the_result_is_flipped_when_it_is_there():
    tensor = ones()
    call = CorruptedCall([TAKEN], Parts("all_reduce", [tensor]), 0)
    assert call.flip_contribution({"tensors": [tensor]}) == {}
    assert call.has_result and is_whole(tensor)
    call.flip_result()
    assert not is_whole(tensor)


@pytest.mark.parametrize(
    ("parts", "gives", "takes"),
    [
        (Parts("barrier"), False, False),
        (Parts("send", [1]), True, False),
        (Parts("recv", (), [1]), False, True),
        (Parts("broadcast", [1], root=1), False, True),
        (Parts("scatter", [1], [1], root=1), False, True),
        (Parts("reduce", [1], root=1), True, False),
        (Parts("gather", [1], [1], root=1), True, False),
        (Parts("reduce", [1], root=0), True, True),
        (Parts("all_to_all", [1], [1]), True, True),
    ],
    ids=lambda value: value.name if isinstance(value, Parts) else None,
)
def test_what_member_0_gives_and_takes(parts, gives, takes):
    assert bool(given_by(parts, 0)) == gives
    assert bool(taken_by(parts, 0)) == takes
