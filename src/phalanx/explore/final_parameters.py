"""The parameters that ranks end with, each as a hash: what they have trained.

What counts are the parameters of optimizers that have stepped, and of models that
DistributedDataParallel has wrapped, with their buffers. Of a sharded parameter (FSDP, DTensor)
each rank's own part counts. They are held until the rank ends, since a function that trains has
forgotten its model by then. What a program changes by hand and gives to neither is not seen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from phalanx.backend.evidence.model_names import HELD
from phalanx.backend.session import RankContext, context_here
from phalanx.explore.digests import digest_of

_STEPPED = "optimizers that stepped"


class FinalParameters:
    """In a `with` statement around a run. `take` is called in each rank when it ends."""

    def __init__(self, ranks: int) -> None:
        self._digests: list[str | None] = [None] * ranks
        self._handle: Any = None

    def digests(self) -> tuple[str | None, ...]:
        """Of each rank; None of one that trained nothing."""
        return tuple(self._digests)

    def take(self, context: RankContext) -> None:
        optimizers = context.saved.pop(_STEPPED, {}).values()
        models = context.saved.pop(HELD, [])
        if optimizers or models:
            trained = [
                [group["params"] for group in optimizer.param_groups]
                for optimizer in optimizers
            ]
            self._digests[context.rank] = digest_of([trained, models]).hex()

    def __enter__(self) -> FinalParameters:
        self._handle = register_optimizer_step_post_hook(_stepped)
        return self

    def __exit__(self, *about: object) -> None:
        self._handle.remove()


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    context = context_here()
    if context is not None:
        context.saved.setdefault(_STEPPED, {}).setdefault(id(optimizer), optimizer)
