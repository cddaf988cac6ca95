"""A backend as a third party would write one: Gloo inside, and two things wrong on purpose.

`all_reduce` forgets the last element of every tensor, and `all_gather` takes no float16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo

NAME = "broken"

_ProcessGroup: Any = dist.ProcessGroup


class BrokenGroup(_ProcessGroup):
    """Hands everything on to Gloo, except for what it breaks."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo: Any = ProcessGroupGloo(store, rank, size, timeout)
        self._name = ""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        (tensor,) = tensors
        last = tensor.reshape(-1)[-1:].clone()
        work = self._gloo.allreduce([tensor], opts)
        work.wait()
        tensor.view(-1)[-1:].copy_(last)
        return work

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if inputs[0].dtype == torch.float16:
            raise NotImplementedError("no float16")
        return self._gloo.allgather(outputs, inputs, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._gloo.broadcast(tensors, opts)

    def barrier(self, opts: Any = None) -> Any:
        return self._gloo.barrier(opts)

    def getBackendName(self) -> str:  # noqa: N802, the name C++ looks for
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name


def make(store: Any, rank: int, size: int, timeout: Any) -> BrokenGroup:
    return BrokenGroup(store, rank, size, timeout)


if NAME not in dist.Backend.backend_list:
    dist.Backend.register_backend(NAME, make, devices=["cpu"])
