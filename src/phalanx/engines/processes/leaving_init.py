"""Members of a Gloo group leave its making together.

Used by `process_rank.py`. Gloo connects each member with each other, and the first that is
done may destroy the group while others still connect: these fail then ("Connection closed by
peer"), with plain torch as well (`docs/upstream-bugs.md`). All members are there anyway, so
nobody waits for one that does not come. Must never wait for ranks that are no members.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx.backend.torch_private import private

PATIENCE = timedelta(seconds=10)
"""For a member that has failed to connect and goes on without the group."""


def leaving_patches() -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, replacement), for the life of the process."""
    original = getattr(c10d, private.NEW_GROUP_NAME)

    def make(*args: Any, **options: Any) -> Any:
        made = original(*args, **options)
        if type(made[0]) is dist.ProcessGroup:
            _await_others(made[0])
        return made

    yield c10d, private.NEW_GROUP_NAME, make


def _await_others(group: dist.ProcessGroup) -> None:
    with suppress(Exception):  # a store that is gone: so are the others
        if group.size() < 2 or dist.Backend.GLOO not in dist.get_backend_config(group):
            return
        store = private.store_of(group)
        here = f"phalanx: connected {group.rank()}"
        store.set(here, "")
        others = [f"phalanx: connected {each}" for each in range(group.size())]
        store.wait(others, PATIENCE)
