"""What is replaced in torch during runs, so that programs reach this backend unchanged.

`emulation/run_patches.py` puts these names in when the first world opens and takes them out
when the last one closes. Threads that belong to no rank pass through to torch's own classes.
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from phalanx.backend import one_rank_assumptions
from phalanx.backend.devices.device_waits import device_patches
from phalanx.backend.dispatch import VisibleGroup, withdraw_operators
from phalanx.backend.evidence.invalid_call import outsider_patches
from phalanx.backend.evidence.model_names import model_patches
from phalanx.backend.evidence.replica_watch import note_wrapped
from phalanx.backend.group_history import noting
from phalanx.backend.group_reuse import leaves_untouched
from phalanx.backend.process_group import RankGroup
from phalanx.backend.session import context_here
from phalanx.backend.stores.rendezvous import check_size, make_rendezvous, note_rank
from phalanx.backend.stores.store import store_patches
from phalanx.backend.torch_private import private
from phalanx.backend.torch_world import PerRankWorld
from phalanx.backend.work import execution_traces
from phalanx.backend.work.buffer_modes import backward_patches
from phalanx.backend.work.execution_traces import SharedObserver
from phalanx.backend.work.profiler_events import profiler_patches

DEFAULT_TIMEOUT = timedelta(minutes=30)


class _Facade(type):
    """Calls make a rank's group inside a rank, the original class elsewhere; instances of
    either pass `isinstance`."""

    original: Any
    backend_name: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        context = context_here()
        if context is None and cls.original is None:
            raise RuntimeError(f"this build of torch has no {cls.__name__}")
        if context is None:
            return cls.original(*args, **kwargs)
        store, rank, size, *rest = args
        check_size(context, rank, size)
        note_rank(context, rank)
        given = rest[0] if rest else kwargs.get("timeout")
        timeout = getattr(given, "_timeout", given) or DEFAULT_TIMEOUT
        made = context.session.group_class or VisibleGroup
        return made(context, cls.backend_name, store, rank, size, timeout)

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, RankGroup):
            return instance.name() == cls.backend_name
        return cls.original is not None and isinstance(instance, cls.original)

    def __getattr__(cls, name: str) -> Any:
        if name == "Options" and cls.original is None:
            return SimpleNamespace
        return getattr(cls.original, name)


def torch_patches(observer: SharedObserver) -> list[tuple[Any, str, Any]]:
    """(owner, name, replacement) for everything; `close` when they are taken out again."""
    module = private.c10d_module
    execution_traces.current = observer
    rendezvous = make_rendezvous(getattr(module, private.RENDEZVOUS_NAME))
    names: dict[str, Any] = {
        private.WORLD_NAME: PerRankWorld(private.original_world()),
        private.RENDEZVOUS_NAME: rendezvous,
        **nccl_names(module),
        private.NEW_GROUP_NAME: noting(_for_threads(getattr(module, private.NEW_GROUP_NAME))),
    }
    for name, backend in ((private.GLOO_NAME, "gloo"), (private.NCCL_NAME, "nccl")):
        original = getattr(module, name, None)
        names[name] = _Facade(name, (), {"original": original, "backend_name": backend})
    return [
        *((module, name, replacement) for name, replacement in names.items()),
        (dist, "rendezvous", rendezvous),
        *store_patches(),
        *profiler_patches(),
        *observer.patches(),
        *one_rank_assumptions.patches(),
        *outsider_patches(),
        *model_patches(note_wrapped),
        *backward_patches(),
        *device_patches(),
    ]


def close(observer: SharedObserver) -> None:
    withdraw_operators()
    observer.close()
    execution_traces.current = None


def _for_threads(original: Any) -> Any:
    """Suites made for torch's test classes may name its group for threads. Here any is one."""

    def make(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        if backend == "threaded" and context_here() is not None:
            backend = dist.Backend("gloo")
        return original(size, rank, ranks, backend, *args, **kwargs)

    return make


def nccl_names(module: Any) -> dict[str, Any]:
    """Inside ranks NCCL is there, also where torch was built without it. What a program asks
    itself (`torch.distributed.is_nccl_available`) keeps its answer."""
    available = getattr(module, private.NCCL_AVAILABLE_NAME)
    timeout = getattr(module, private.NCCL_TIMEOUT_NAME) or timedelta(minutes=10)

    def available_to_ranks() -> bool:
        return context_here() is not None or available()

    return {
        private.NCCL_AVAILABLE_NAME: available_to_ranks,
        private.NCCL_TIMEOUT_NAME: timeout,
    }


def leave_groups(context: Any) -> None:
    """Last thing in a rank's body: destroy what it left, unless the next world can have it."""
    if context.torch_state.default_pg is not None and not leaves_untouched(context):
        dist.destroy_process_group()
