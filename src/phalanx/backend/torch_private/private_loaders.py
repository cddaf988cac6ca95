"""Private names of torch's data loaders: what a rank removes when it ends.

Used by `emulation/stdlib/rank_children.py`.
"""

from __future__ import annotations

from typing import Any

import torch.utils.data.dataloader as _module

LoaderIterator: Any = _module._MultiProcessingDataLoaderIter
"""2.11-2.13: what iterates with workers. At the end of a process torch lets its workers die;
at the end of a rank the process lives on, and its finaliser would find closed queues."""


def shut_down(iterator: Any) -> None:
    """2.11-2.13: end its workers and its thread, as its finaliser does."""
    iterator._shutdown_workers()
