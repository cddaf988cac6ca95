"""A project's own `utils/dist.py`: what wraps torch's calls for many callers."""

from __future__ import annotations

import torch
import torch.distributed as dist


def is_chief() -> bool:
    return dist.get_rank() == 0


def summed(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor


def wait_for_all() -> None:
    dist.barrier()
