"""Store reads that come before what they read is settled, wrong and right ones."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import phalanx
from tests.checks import early_reads as programs
from tests.support import assert_silent


def findings(program: Any, seed: int) -> list[Any]:
    with phalanx.World(ranks=3, seed=seed, clock="virtual") as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return list(world.findings)


def check_found(program: Any, text: str) -> None:
    """Every schedule shows it: what orders ranks decides, not what they happened to read."""
    for seed in range(5):
        found = findings(program, seed)
        assert {each.kind for each in found} == {"message-race"}, seed
        assert any(text in each.headline for each in found), seed


@pytest.mark.parametrize(
    "program",
    [
        programs.one_key_for_all_rounds,
        programs.one_key_asked_by_add,
        programs.one_key_and_a_break,
        programs.one_key_behind_a_method,
        programs.one_key_that_is_waited_for,
        programs.the_last_one_opens_a_door_that_stays_open,
        programs.two_keys_in_turn,
    ],
)
def test_a_barrier_whose_key_is_used_again_orders_nothing(program) -> None:
    check_found(program, 'may read "plan"')


@pytest.mark.parametrize(
    "program",
    [
        programs.a_key_for_each_round,
        programs.a_limit_that_grows,
        programs.a_limit_that_grows_with_a_break,
        programs.the_last_one_opens_a_door_for_each_round,
        programs.a_limit_that_the_object_counts,
        programs.a_key_of_each_rank_and_round,
        programs.a_key_that_is_gone_when_it_was_read,
    ],
)
def test_barriers_by_keys_that_order(program) -> None:
    assert_silent(program, ranks=3, seeds=range(5), clock="virtual")


@pytest.mark.parametrize(
    "program",
    [
        programs.a_sum_that_is_used,
        programs.a_sum_that_a_function_returns,
        programs.a_sum_asked_by_add,
        programs.a_sum_in_an_attribute,
        programs.a_total_that_one_rank_prints,
    ],
)
def test_a_counter_that_others_may_still_add_to(program) -> None:
    check_found(program, "adds to it")


@pytest.mark.parametrize(
    "program",
    [
        programs.a_sum_behind_a_barrier,
        programs.a_sum_behind_a_group,
        programs.a_sum_behind_a_count,
        programs.a_sum_that_is_waited_for,
        programs.a_sum_that_is_waited_for_by_hand,
        programs.tickets,
        programs.a_sum_that_is_printed,
        programs.a_sum_that_is_logged,
        programs.a_total_behind_a_barrier,
        programs.a_total_now_and_then,
        programs.a_total_on_the_way,
        programs.a_total_of_those_who_are_done,
        programs.a_total_that_somebody_watches,
        programs.a_number_that_one_rank_gives,
        programs.a_flag_that_ends_a_loop,
        programs.a_monitor_beside,
    ],
)
def test_counters_that_may_be_read(program) -> None:
    assert_silent(program, ranks=3, seeds=range(5), clock="virtual")


@pytest.mark.parametrize(
    "program",
    [
        programs.progress_taken_for_final,
        programs.the_last_checkpoint,
        programs.progress_collected_in_a_list,
        programs.a_rate_that_each_round_takes,
        programs.a_plan_in_a_loop_where_the_writer_sleeps,
    ],
)
def test_a_key_that_is_still_set_again(program) -> None:
    check_found(program, "sets it again")


@pytest.mark.parametrize(
    "program",
    [
        programs.progress_that_is_printed,
        programs.the_slowest_is_printed_now_and_then,
        programs.a_heartbeat,
        programs.the_latest_weights_each_time,
        programs.a_watcher_that_sleeps_as_often,
        programs.a_rate_for_each_round,
        programs.a_rate_that_is_looked_for_until_it_is_new,
        programs.a_state_that_is_waited_for,
        programs.a_clock_that_is_waited_for,
        programs.final_and_behind_a_barrier,
        programs.final_and_said_so,
        programs.a_key_that_is_set_once,
    ],
)
def test_keys_that_are_watched_or_ordered(program) -> None:
    assert_silent(program, ranks=3, seeds=range(5), clock="virtual")
