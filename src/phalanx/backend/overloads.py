"""The overloads of torch's process group: one call can be written in several ways.

A program may pass one tensor or a list, an options object or its parts (a root, a reduce op, a
timeout), by place or by name. The process group uses these functions to bring a call into the
form with lists and options.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

_OPS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def options(
    kind: Any, given: Any, *, timeout: timedelta | None = None, root: Any = None, op: Any = None
) -> Any:
    """Options of this kind. `given` is such an object, or what stands in its place in another
    overload: a root, a reduce op or a timeout."""
    if isinstance(given, kind):
        return given
    if isinstance(given, timedelta):
        timeout = given
    elif isinstance(given, _OPS):
        op = given
    elif given is not None:
        root = given
    made = kind()
    if root is not None:
        made.rootRank = root
    if op is not None:
        made.reduceOp = op
    if timeout is not None:
        made.timeout = timeout
    return made


def as_list(tensors: Any, tensor: Any = None) -> list[Tensor]:
    """The tensors of a call that names a list or one tensor."""
    given = tensor if tensors is None else tensors
    return [given] if isinstance(given, Tensor) else list(given)


def as_lists(lists: Any, single: bool) -> list[Any]:
    """A list for each tensor on the other side, of which there is one if `single`; a missing
    one (the root's, on other ranks) is no list at all."""
    if not single:
        return list(lists)
    return [list(lists)] if lists else []
