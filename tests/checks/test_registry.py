"""Checks at the end of a run: one that breaks costs nobody's run."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.checks import registry


def program() -> float:
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()


def test_a_check_that_breaks_is_told_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(journal: object, host: object) -> list[phalanx.PhalanxWarning]:
        raise KeyError("lost")

    monkeypatch.setitem(registry.AT_END, "leak", broken)
    with pytest.warns(phalanx.PhalanxWarning, match=r"\[leak\]: the check itself failed.*lost"):
        assert phalanx.run(program, ranks=2) == [2.0, 2.0]
    assert phalanx.run(program, ranks=2, checks="all,-leak") == [2.0, 2.0]
