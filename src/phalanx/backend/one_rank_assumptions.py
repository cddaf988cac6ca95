"""Where torch's layers above the groups assume one rank per process, and what we do about it.

Each function lists what is replaced during runs, and why. Used by `install`. Attributes that
need no more than a value for each rank are swapped with the baton
(`emulation/state/switcher.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.cuda import nccl
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from phalanx.backend import mesh_groups
from phalanx.backend.endpoint import CPP_NAME
from phalanx.backend.session import context_here
from phalanx.backend.torch_private import private, private_devices, private_meshes
from phalanx.core.strand import here

Patch = tuple[Any, str, Any]
"""Owner, name, replacement."""

_dist: Any = dist  # torch's stubs leave the debug level out

LOGGED_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "GLOO_DEVICE_TRANSPORT",
    "NCCL_SOCKET_IFNAME",
    "NCCL_BLOCKING_WAIT",
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_DEBUG",
    "NCCL_NTHREADS",
    "NCCL_IB_TIMEOUT",
)


def patches() -> list[Patch]:
    private_devices.keep_cuda_guard()
    return [
        *debug_patches(),
        *nccl_patches(),
        *ddp_patches(),
        *mesh_patches(),
        *batch_patches(),
    ]


def nccl_patches() -> list[Patch]:
    """When a collective of a group named "nccl" fails, torch logs the version of NCCL, which
    not every build has."""
    version: Any = nccl.version

    def version_or_none() -> tuple[int, ...]:
        known = private.has_nccl() or context_here() is None
        return version() if known else (0, 0, 0)

    return [(nccl, "version", version_or_none)]


def batch_patches() -> list[Patch]:
    """To a group that is no C++ class `batch_isend_irecv` gives its messages one by one. It
    looks at the whole list first, which is where we learn that they belong together."""
    check: Any = getattr(distributed_c10d, private.CHECK_BATCH_NAME, None)
    if check is None:
        return []  # a later version; then batches look like single messages

    def check_and_note(messages: Any) -> None:
        check(messages)
        strand = here.strand
        if strand is not None and messages:
            context = strand.local
            number = next(context.session.batch_numbers)
            context.batches[strand] = [len(messages), number]

    return [(distributed_c10d, private.CHECK_BATCH_NAME, check_and_note)]


def debug_patches() -> list[Patch]:
    """Each rank has its own debug level, and reads it from its own environment. C++ code
    sees the one that was set last."""
    get, set_for_all = _dist.get_debug_level, _dist.set_debug_level
    before = get()

    def get_level() -> Any:
        context = context_here()
        return get() if context is None else context.saved.get("debug level", before)

    def set_level(level: Any) -> None:
        context = context_here()
        if context is not None:
            context.saved["debug level"] = level
        set_for_all(level)

    def set_level_from_env() -> None:
        given = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF")
        levels = _dist.DebugLevel.__members__
        if given.upper() not in levels:
            raise ValueError(
                f"TORCH_DISTRIBUTED_DEBUG is {given!r}; it must be one of {', '.join(levels)}"
            )
        set_level(levels[given.upper()])

    return [
        (dist, "get_debug_level", get_level),
        (distributed_c10d, "get_debug_level", get_level),
        (dist, "set_debug_level", set_level),
        (dist, "set_debug_level_from_env", set_level_from_env),
    ]


def keep_debug_level() -> Callable[[], None]:
    """The function that puts the process's level back as it is now."""
    return partial(_dist.set_debug_level, _dist.get_debug_level())


def ddp_patches() -> list[Patch]:
    """Where DDP and `Join` rely on a group written in C++."""
    notify = Join.notify_join_context
    logged = getattr(DistributedDataParallel, private.DDP_LOG_NAME)

    def notify_and_remember(joinable: Any) -> Any:
        """`Join` gives a `Work` to DDP's reducer and forgets it. To C++ it is then no Python
        object any more, and waiting for it would never end; so each rank keeps its last."""
        work = notify(joinable)
        context = context_here()
        if context is not None:
            context.saved["join"] = work
        return work

    def logged_as_asked(model: Any) -> dict[str, Any]:
        """The reducer's logger knows neither the backend's name nor a rank's environment."""
        found: dict[str, Any] = logged(model)
        if context_here() is not None and found.get("backend_name") == CPP_NAME:
            found.update(ddp_log_entries(dist.get_backend(model.process_group)))
        return found

    return [
        (Join, "notify_join_context", staticmethod(notify_and_remember)),
        (DistributedDataParallel, private.DDP_LOG_NAME, logged_as_asked),
    ]


def ddp_log_entries(backend: str) -> dict[str, Any]:
    """What torch's logger would have found out about the backend."""
    names = ["MASTER_ADDR", "MASTER_PORT", "TORCH_DISTRIBUTED_DEBUG"]
    names += [name for name in LOGGED_VARIABLES if name.startswith(backend.upper())]
    entries: dict[str, Any] = {name.lower(): os.environ.get(name, "N/A") for name in names}
    entries["backend_name"] = backend
    if backend == "gloo":
        entries["gloo_num_threads"] = 2
    return entries


def mesh_patches() -> list[Patch]:
    """DTensor remembers plans per process, by mesh; but they hold for one rank only. What
    ranks work out alike about a mesh is kept once."""
    make = DeviceMesh.__init__

    def make_for_rank(mesh: Any, *args: Any, **kwargs: Any) -> None:
        context = context_here()
        if context is None:
            make(mesh, *args, **kwargs)
            return
        with private_meshes.made_by(mesh, partial(mesh_groups.make, context)):
            make(mesh, *args, **kwargs)
        private.set_mesh_owner(mesh, context.rank)
        private_meshes.share_ranks(mesh, context.session.meshes)

    return [(DeviceMesh, "__init__", make_for_rank)]
