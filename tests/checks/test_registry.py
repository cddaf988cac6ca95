"""Checks at the end of a run: one that breaks costs nobody's run."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend import observers


def program() -> float:
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()


def test_a_check_that_breaks_is_told_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(session: object) -> list[phalanx.PhalanxWarning]:
        raise KeyError("lost")

    checks = {**observers.AT_END, "leak": broken}
    monkeypatch.setattr(observers, "AT_END", checks)
    with pytest.warns(phalanx.PhalanxWarning, match=r"\[leak\]: the check itself failed.*lost"):
        assert phalanx.run(program, ranks=2) == [2.0, 2.0]
    assert phalanx.run(program, ranks=2, checks="all,-leak") == [2.0, 2.0]
