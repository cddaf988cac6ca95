"""Private torch names of device meshes.

A part of `private.py`, under the same rule: the name, the reason, the versions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

# 2.13: makes the groups of a mesh, and returns the name of the rank's own for each dimension.
# A mesh asks itself for it, so that one that has its own takes that. Earlier versions have
# other arguments; then all is as torch does it.
_MAKER = "_init_process_groups"
_ARGUMENTS = ["layout", "rank_map", "mesh_dim_names", "backend_override"]
_maker: Any = getattr(DeviceMesh, _MAKER, None)
is_known = _maker is not None and list(inspect.signature(_maker).parameters) == _ARGUMENTS

Maker = Callable[..., list[Any]]


@contextmanager
def made_by(mesh: Any, make: Callable[..., list[Any]]) -> Iterator[None]:
    """Meanwhile this mesh, which is being made, gets its groups from `make`: it takes torch's
    own way, and that way's arguments."""
    if not is_known:
        yield
        return
    setattr(mesh, _MAKER, partial(make, _maker))
    try:
        yield
    finally:
        vars(mesh).pop(_MAKER, None)


def share_ranks(mesh: Any, shared: dict[Any, Any]) -> None:
    """2.13: a mesh keeps all its ranks as a tuple, for its hash. Equal ones become one."""
    ranks = getattr(mesh, "_flatten_rank_map", None)
    if type(ranks) is tuple:
        mesh._flatten_rank_map = shared.setdefault(ranks, ranks)
