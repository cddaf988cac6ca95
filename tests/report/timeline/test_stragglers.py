"""Who is named a straggler, and who only came last by chance."""

from __future__ import annotations

import pytest

from phalanx.report.timeline.operation_counts import Late
from phalanx.report.timeline.stragglers import find_stragglers, straggler_text


def test_a_rank_that_costs_much_is_named() -> None:
    lates = [Late(1, 8, 1.1), Late(3, 8, 0.0007), Late(1, 2, 0.02)]
    found = find_stragglers(lates, ranks=4, seconds=1.23)
    assert straggler_text(found) == "others waited for rank 1 for 1.12 s (10x)"


@pytest.mark.parametrize(
    ("lates", "seconds"),
    [
        ([Late(3, 6, 0.00247)], 0.010),  # a quarter of the run, but too short to mean anything
        ([Late(3, 6, 0.090)], 1.0),  # less than a tenth of the run
        ([Late(rank, 5, 0.2) for rank in range(4)], 1.0),  # all of them alike
        ([], 0.0),
    ],
)
def test_noise_is_no_straggler(lates: list[Late], seconds: float) -> None:
    assert straggler_text(find_stragglers(lates, ranks=4, seconds=seconds)) == ""
