"""`world`: what a test can ask about the ranks it runs on. Used by the plugin's fixtures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RankWorld:
    """The rank that asks, how many there are, and how they run."""

    rank: int
    size: int
    engine: str
    backend: str | None
    seed: int
    place: str | None = None
    """"cuda" or "cpu", if the test asks for one."""

    @property
    def device(self) -> torch.device:
        """Where this rank's tensors belong: a GPU if the test asks for one, or for a backend
        of GPUs and there are any, as many ranks on each as need be; else the CPU."""
        import torch

        asked = self.place or self.backend or ""
        wants_gpu = any(name in asked for name in ("nccl", "cuda"))
        if wants_gpu and torch.cuda.is_available():
            return torch.device("cuda", self.rank % torch.cuda.device_count())
        return torch.device("cpu")

    def barrier(self) -> None:
        """Wait until every rank of the test has come here."""
        import torch.distributed as dist

        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank. Any object that can be pickled."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


rank_world = lru_cache(maxsize=1024)(RankWorld)
"""The same one for the same question: test after test has the same ranks."""
