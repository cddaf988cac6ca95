"""What the program makes of messages that it takes as they come, wrong and right."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import phalanx
from tests.checks import ordered_updates as programs
from tests.support import assert_silent


def findings(program: Any) -> list[Any]:
    with phalanx.World(ranks=3) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return list(world.findings)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (programs.momentum, "speed = 0.9 * speed + part"),
        (programs.momentum_in_place, "speed.mul_(0.9).add_(part, alpha=0.1)"),
        (programs.an_object_that_takes_one_at_a_time, "self.mean = self.decay * self.mean +"),
        (programs.an_optimizer_that_is_given_each, "self.velocity = 0.9 * self.velocity +"),
        (programs.a_server_that_makes_room_for_each, "self.average.mul_(0.5).add_(update,"),
        (programs.names_beside_what_came, "dict(zip(LABELS, got"),
        (programs.a_header_and_whatever_comes, "table[int(header)] = payload"),
        (programs.halved_each_time, "blend = (blend + given) / 2"),
        (programs.a_difference_of_two_that_a_function_received, "second - first"),
        (programs.a_difference_of_two_that_a_function_filled, "one - 2 * two"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_the_order_of_messages_decides(program, text: str) -> None:
    (found,) = findings(program)
    assert found.kind == "message-race" and found.ranks == (0,)
    assert "takes messages as they come" in found.headline and text in found.headline


@pytest.mark.parametrize(
    "program",
    [
        programs.summed,
        programs.multiplied,
        programs.the_largest,
        programs.a_running_mean,
        programs.a_running_mean_with_a_count,
        programs.a_running_mean_of_an_object,
        programs.one_for_each_sender,
        programs.one_for_each_sender_that_says_so,
        programs.begun_anew_each_time,
        programs.smoothed_for_the_eye,
        programs.one_after_the_other,
        programs.of_one_sender,
        programs.a_sum_of_two_that_a_function_received,
        programs.sorted_before_they_are_told_apart,
        programs.a_header_and_its_payload,
        programs.a_header_and_a_payload_that_was_asked_for,
        programs.a_header_before_whose_end_no_payload_is_sent,
        programs.two_sums_by_tags,
        programs.names_beside_who_sent,
    ],
)
def test_messages_that_may_come_in_any_order(program) -> None:
    assert_silent(program, ranks=3, seeds=(0, 1, 2))
