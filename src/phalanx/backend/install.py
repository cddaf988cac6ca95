"""What is replaced in torch during runs, so that programs reach this backend unchanged.

The running layer installs this when the first world opens and removes it when the last one
closes. Threads that belong to no rank pass through to torch's own classes.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from phalanx.backend import private
from phalanx.backend.endpoint import CPP_NAME
from phalanx.backend.group import RankGroup
from phalanx.backend.late import LatePatches
from phalanx.backend.profiling import profiler_patches
from phalanx.backend.rendezvous import check_size, make_rendezvous
from phalanx.backend.session import context_here
from phalanx.backend.store import store_patches
from phalanx.backend.torch_state import PerRank, PerRankWorld
from phalanx.backend.traces import SharedObserver
from phalanx.backend.visible import VisibleGroup, withdraw_operators

DEFAULT_TIMEOUT = timedelta(minutes=30)
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


class _Facade(type):
    """Calls make a rank's group inside a rank, the original class elsewhere; instances of
    either pass `isinstance`."""

    original: Any
    backend_name: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        context = context_here()
        if context is None:
            return cls.original(*args, **kwargs)
        context.initialised = True
        store, rank, size, *rest = args
        check_size(context, rank, size)
        given = rest[0] if rest else kwargs.get("timeout")
        timeout = getattr(given, "_timeout", given) or DEFAULT_TIMEOUT
        return VisibleGroup(context, cls.backend_name, store, rank, size, timeout)

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, RankGroup):
            return instance.name() == cls.backend_name
        return cls.original is not None and isinstance(instance, cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


def install() -> Callable[[], None]:
    """Replace what must be replaced; the function that puts everything back."""
    module = private.c10d_module
    names: dict[str, Any] = {
        private.WORLD_NAME: PerRankWorld(private.original_world()),
        private.RENDEZVOUS_NAME: make_rendezvous(getattr(module, private.RENDEZVOUS_NAME)),
    }
    for name, backend in ((private.GLOO_NAME, "gloo"), (private.NCCL_NAME, "nccl")):
        original = getattr(module, name, None)
        if original is not None:
            names[name] = _Facade(name, (), {"original": original, "backend_name": backend})
    before = private.replace_names(**names)
    traces = SharedObserver()
    patches = [
        *store_patches(),
        *profiler_patches(),
        *traces.patches(),
        *ddp_patches(),
        (dist, "rendezvous", names[private.RENDEZVOUS_NAME]),
    ]
    late = LatePatches({private.FSDP_TIMES_MODULE: fsdp_patches})
    patched = [(owner, name, vars(owner)[name]) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    late.install()

    def uninstall() -> None:
        late.uninstall()
        private.replace_names(**before)
        withdraw_operators()
        traces.close()
        for owner, name, original in patched:
            setattr(owner, name, original)

    return uninstall


def ddp_patches() -> list[tuple[Any, str, Any]]:
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


def fsdp_patches(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """FSDP's own clock keeps its times on the class, and refuses two of a kind at once."""
    times = module.SimpleProfiler
    return [
        (times, "results", PerRank(times.results, lambda: defaultdict(float))),
        (times, "profiling", PerRank(times.profiling, set)),
    ]


def leave_groups(context: Any) -> None:
    """Last thing in a rank's thread: destroy what it left, empty torch's per-thread map."""
    if context.torch_state.default_pg is not None:
        dist.destroy_process_group()
    private.unregister_groups()
