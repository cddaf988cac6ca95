"""A flat network: each formula against steps counted by hand."""

from __future__ import annotations

import pytest

from phalanx.costs import alpha_beta
from phalanx.errors import UsageError

NET = alpha_beta(latency=1e-3, bandwidth=1e6)
RANKS = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("operation", "seconds"),
    [
        ("all_reduce", 6 * (1e-3 + 0.1)),  # a ring, there and round again, by quarters
        ("all_gather", 3 * (1e-3 + 0.1)),
        ("all_gather_into_tensor", 3 * (1e-3 + 0.1)),
        ("reduce_scatter_tensor", 3 * (1e-3 + 0.1)),
        ("all_to_all_single", 3 * (1e-3 + 0.1)),
        ("broadcast", 2 * (1e-3 + 0.4)),  # a tree of two levels, all of it each time
        ("reduce", 2 * (1e-3 + 0.4)),
        ("gather", 1e-3 + 3 * 0.1),  # three messages into one link
        ("barrier", 2 * 1e-3),
    ],
)
def test_what_a_collective_takes(operation: str, seconds: float) -> None:
    assert NET.collective(operation, 400_000, RANKS) == pytest.approx(seconds)


def test_ranks_that_share_cores_take_turns() -> None:
    shared = alpha_beta(latency=1e-3, bandwidth=1e6, cores=2)
    assert repr(shared) == "alpha_beta(latency=1e-3, bandwidth=1e6, cores=2)"
    for ranks, turns in (((0, 1), 1), (RANKS, 2)):
        alone = NET.collective("all_reduce", 400_000, ranks)
        assert shared.collective("all_reduce", 400_000, ranks) == pytest.approx(turns * alone)


def test_alone_nothing_takes_time() -> None:
    assert NET.collective("all_reduce", 400_000, (2,)) == 0.0


def test_a_message_uses_the_links_of_both_ends() -> None:
    message = NET.message(500_000, 3, 1)
    assert (message.seconds, message.latency) == (0.5, 1e-3)
    assert message.ports == (("out", 3), ("in", 1))


@pytest.mark.parametrize("given", [0, -1.0, float("inf"), "fast", True, None])
def test_what_is_no_link(given: object) -> None:
    with pytest.raises(UsageError, match=r"give a number above 0, e\.g\. bandwidth=12e9"):
        alpha_beta(latency=1e-6, bandwidth=given)  # type: ignore[arg-type]
