"""Nodes with GPUs: which algorithm NCCL takes, and what follows from where ranks are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from phalanx.costs import alpha_beta, cluster, dgx_a100, dgx_h100
from phalanx.costs.cluster_network import Cluster, _shape
from phalanx.costs.nccl_tuning import plans

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NODE = range(8)


@pytest.mark.parametrize(
    ("network", "ranks", "size", "chosen"),
    [
        (dgx_a100(), NODE, 4 * KIB, ("ring", "LL")),
        (dgx_a100(), NODE, 8 * MIB, ("ring", "LL128")),
        (dgx_a100(), NODE, GIB, ("ring", "Simple")),
        (dgx_h100(), NODE, GIB, ("nvls", "Simple")),
        (dgx_h100(), range(4), GIB, ("ring", "Simple")),
        (dgx_h100(nodes=2), range(16), GIB, ("nvls tree", "Simple")),
        (dgx_h100(nodes=8), range(64), GIB, ("nvls tree", "Simple")),
        (dgx_a100(nodes=16), range(128), 4 * KIB, ("tree", "LL")),
        (dgx_a100(nodes=16), range(128), 16 * MIB, ("tree", "LL128")),
        (dgx_a100(nodes=2), range(16), 4 * GIB, ("tree", "Simple")),
        (dgx_a100(nodes=4), range(32), 4 * GIB, ("ring", "Simple")),
    ],
)
def test_the_algorithm_by_size_ranks_and_nodes(
    network: Cluster, ranks: range, size: int, chosen: tuple[str, str]
) -> None:
    plan = network.plan("all_reduce", size, ranks)
    assert (plan.algorithm, plan.protocol) == chosen


@pytest.mark.parametrize("network", [dgx_a100(nodes=4), dgx_h100(nodes=4)])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
def test_more_bytes_take_longer_and_no_link_carries_more_than_it_can(
    network, operation
) -> None:  # type: ignore[no-untyped-def]
    for ranks in (range(2), range(8), range(16), range(0, 32, 8), range(32)):
        times = [network.collective(operation, 1 << p, ranks) for p in range(3, 34)]
        assert all(early <= late * 1.2 for early, late in pairwise(times))
        carried = (1 << 33) * (len(ranks) - 1) / len(ranks)
        assert carried / times[-1] < 1.4 * network.intra.bandwidth


@pytest.mark.parametrize(("nodes", "part"), [(1, 0.74 * 370), (2, 0.74 * 370), (4, 192.0)])
def test_switches_add_as_fast_as_the_slower_of_switch_and_network(
    nodes: int, part: float
) -> None:
    """In GB/s; of many nodes each sends up and down what it gets."""
    seconds = dgx_h100(nodes=nodes).collective("all_reduce", 16 * GIB, range(8 * nodes))
    assert 16 * GIB / seconds / 1e9 == pytest.approx(part, rel=0.02)


def test_the_first_round_of_chunks_has_to_be_through() -> None:
    """NCCL cuts 32 MiB into rounds of 32 KiB for each of 16 channels and 8 GPUs."""
    seconds = dgx_h100().collective("all_reduce", 32 * MIB, NODE)
    moved = 32 * MIB + 16 * 8 * 32 * KIB
    assert seconds == pytest.approx(25e-6 + moved / (0.74 * 370e9))


def test_a_plan_is_the_quickest_of_all() -> None:
    network, ranks = dgx_a100(nodes=4), tuple(range(32))
    found = [plan.seconds for plan in plans("all_reduce", MIB, _shape(network, ranks))]
    assert len(found) == 6
    assert network.plan("all_reduce", MIB, ranks).seconds == min(found)


def test_ranks_of_one_node_do_not_use_the_network() -> None:
    slow = cluster(
        nodes=2,
        gpus=4,
        intra=alpha_beta(latency=3e-6, bandwidth=200e9),
        inter=alpha_beta(latency=1.0, bandwidth=1.0),
    )
    assert slow.collective("all_reduce", MIB, (4, 5, 6, 7)) < 1e-3
    assert slow.collective("all_reduce", MIB, (3, 4)) > 1.0
    assert slow.message(MIB, 1, 2).latency == 3e-6
    assert slow.message(MIB, 3, 4).latency == 1.0


def test_gpus_share_the_cards_of_their_node() -> None:
    link = alpha_beta(latency=1e-6, bandwidth=1e9)
    shared = cluster(nodes=2, gpus=4, intra=link, inter=link, nics=2)
    assert shared.message(8, 0, 4).ports == shared.message(8, 1, 5).ports
    assert shared.message(8, 0, 4).ports != shared.message(8, 2, 6).ports


def test_a_barrier_costs_its_latency_whatever_was_sent() -> None:
    network = dgx_a100(nodes=2)
    assert network.collective("barrier", 0, range(16)) == network.collective(
        "barrier", GIB, range(16)
    )
