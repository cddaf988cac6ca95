"""Any of the possible steps may be next, each with the same chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

from phalanx.explore.trace import Candidate, Choice, Trace


class RandomWalk:
    name = "random"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs = 0
        self._random = random.Random(seed)

    def begin(self) -> bool:
        self._random = random.Random(f"{self._seed}.{self._runs}")
        self._runs += 1
        return True

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        return self._random.randrange(len(candidates))

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        return self._random.randrange(len(values))

    def made(self, choice: Choice) -> None: ...

    def in_vain(self, index: int) -> None: ...

    def end(self, trace: Trace) -> None: ...
