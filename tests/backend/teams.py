"""Groups to run one and the same test body on: worlds of several sizes, and a subgroup."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch.distributed as dist

import phalanx


@dataclass(frozen=True)
class Team:
    """`members` of a world of `ranks`; None is all of them."""

    ranks: int
    members: tuple[int, ...] | None = None
    seed: int = 0

    @property
    def size(self) -> int:
        return self.ranks if self.members is None else len(self.members)

    def run(self, body: Callable[[Any, int], Any]) -> list[Any]:
        """`body(group, rank in the group)` on every member; its values in group order."""

        def program() -> Any:
            if self.members is None:
                return body(None, dist.get_rank())
            group = dist.new_group(list(self.members))
            if dist.get_rank() not in self.members:
                return None
            return body(group, dist.get_rank(group))

        values = phalanx.run(program, ranks=self.ranks, seed=self.seed)
        return values if self.members is None else [values[rank] for rank in self.members]

    def __str__(self) -> str:
        return str(self.ranks) if self.members is None else f"{self.members} of {self.ranks}"


TEAMS = [Team(1), Team(2), Team(3), Team(4), Team(4, (1, 3))]


def warns_if(deprecated: bool) -> AbstractContextManager[Any]:
    """torch 2.13 warns about some spellings that programs still use."""
    return pytest.warns(FutureWarning) if deprecated else nullcontext()
