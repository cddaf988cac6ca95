"""What the benchmark of `phalanx explain` counts."""

from __future__ import annotations

from typing import Any

from benchmarks.explain import Result, figures, fits, mixed, shown


def verdict(*ranks: int, line: int = 3, kind: str = "mismatch") -> dict[str, Any]:
    return {"kind": kind, "ranks": list(ranks), "sites": [["a.py", line]], "ops": ["barrier"]}


def result(**given: Any) -> Result:
    whole: dict[str, Any] = {"id": "F1", "right": False, "how": "hangs", **given}
    return Result(**whole)


def test_the_same_ranks_and_a_line_count() -> None:
    truth = verdict(1)
    assert fits(result(threads=truth, box=verdict(1, kind="stall")), "box")
    assert not fits(result(threads=truth, box=verdict(0)), "box")
    assert not fits(result(threads=truth, box=verdict(1, line=4)), "box")
    assert not fits(result(threads=truth, box=None), "box")


def test_figures() -> None:
    rows = dict(
        figures(
            [
                result(threads=verdict(1), box=verdict(1), recorded=True),
                result(threads=verdict(1), box=verdict(0), how="fails"),
                result(right=True, how="passes"),
                result(right=True, how="passes", box=verdict(0)),
            ]
        )
    )
    assert rows["black box: same ranks and line, of those that hang"] == "1 of 1 (100 %)"
    assert rows["Flight Recorder alone, where it has the calls"] == "0 of 1 (0 %)"
    assert rows["right programs run, blamed by black box or recorder"] == "2, 1"


def test_cells_and_order() -> None:
    assert shown(None) == "nothing"
    assert shown(verdict(0, 1), same=True) == "**=** mismatch 0,1"
    wrong: Any = list("abcdefghi")
    right: Any = ["X", "Y", "Z"]
    assert sorted(mixed(wrong, right)) == sorted([*wrong, *right])
