"""Networks as text: what is printed can be read back, and what is no network is refused."""

from __future__ import annotations

import pytest

from phalanx.costs import alpha_beta, cluster, dgx_a100, dgx_h100, parse_network
from phalanx.errors import UsageError

LINK = alpha_beta(latency=3.3e-6, bandwidth=12_345_678_901.5)


@pytest.mark.parametrize(
    "network",
    [
        LINK,
        dgx_a100(nodes=16),
        dgx_h100(),
        cluster(nodes=3, gpus=6, intra=LINK, inter=LINK, nics=2, gpu="h100"),
    ],
)
def test_its_text_is_read_back(network: object) -> None:
    assert parse_network(repr(network)) == network


def test_short_names_with_defaults() -> None:
    assert parse_network(" dgx_a100( nodes = 2 ) ") == dgx_a100(nodes=2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write a call of one of alpha_beta, cluster"),
        ("fast", "that is no call"),
        ("open('x')", "there is no 'open'"),
        ("alpha_beta(1e-6, 1e9)", "alpha_beta takes its values by name"),
        ("alpha_beta(latency=1e-6)", "missing 1 required keyword-only argument"),
        ("alpha_beta(latency=x, bandwidth=1)", "malformed node"),
        ("alpha_beta(latency=-1, bandwidth=1)", "give a number above 0"),
        ("dgx_a100(nodes=0)", "give a whole number from 1, e.g. nodes=8"),
        ("cluster(nodes=1, gpus=1, intra=3, inter=4)", "give a link, e.g. intra=alpha_beta"),
        ("(" * 500, "write a call of"),
    ],
)
def test_what_is_no_network(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_network(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
