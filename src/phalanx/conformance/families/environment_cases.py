"""What surrounds the collectives: availability, initialisation and its ways, repeated
initialisation, debug levels, errors.

Cases that initialise by themselves start without a default group and leave none.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.conformance.case_context import Context
from phalanx.conformance.family import Family

family = Family("environment")
cases, PROGRAMS = family.cases, family.programs

d: Any = dist
TIMEOUT = timedelta(seconds=10)
METHODS = ("file", "store", "tcp", "env", "env by default")


@family.case(
    "availability",
    "functions",
)
def availability(me: Context) -> None:
    me.check(dist.is_available() and dist.is_initialized(), "not available or initialized")
    for name in ("gloo", "nccl", "mpi", "xccl"):
        answer = getattr(dist, f"is_{name}_available")()
        me.check(isinstance(answer, bool), f"is_{name}_available gives {answer!r}")
    me.check(dist.is_gloo_available(), "no Gloo")
    me.check(isinstance(dist.is_torchelastic_launched(), bool), "is_torchelastic_launched")


@family.case(
    "environment",
    "of a rank",
)
def environment(me: Context) -> None:
    me.equal(os.environ["RANK"], str(me.rank), "RANK")
    me.equal(os.environ["WORLD_SIZE"], str(me.size), "WORLD_SIZE")
    me.equal(os.environ["LOCAL_RANK"], str(me.rank), "LOCAL_RANK")
    me.check(bool(os.environ["MASTER_ADDR"]) and int(os.environ["MASTER_PORT"]) > 0, "MASTER")
    me.equal(dist.get_node_local_rank(), me.rank, "get_node_local_rank")


@family.case(
    "errors",
    "classes",
)
def error_classes(me: Context) -> None:
    for name in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        me.check(issubclass(getattr(d, name), d.DistError), f"{name} is no DistError")
    me.check(issubclass(d.DistError, RuntimeError), "DistError is no RuntimeError")
    me.check(issubclass(d.QueueEmptyError, d.DistStoreError), "QueueEmptyError")


@family.case("Backend", "names")
def backend_names(me: Context) -> None:
    me.equal(d.Backend("GLOO"), "gloo", "Backend('GLOO')")
    me.equal((d.Backend.GLOO, d.Backend.NCCL, d.Backend.MPI), ("gloo", "nccl", "mpi"), "names")
    me.raises(ValueError, lambda: d.Backend(5), "Backend(5)")


@family.case(
    "debug_level",
    "set and ask",
    over={"level": ("OFF", "INFO", "DETAIL")},
)
def debug_level(me: Context, level: str) -> None:
    before = d.get_debug_level()
    try:
        d.set_debug_level(getattr(d.DebugLevel, level))
        me.equal(d.get_debug_level(), getattr(d.DebugLevel, level), "get_debug_level")
        tensor = torch.ones(1, device=me.device)
        dist.all_reduce(tensor)
        me.equal(tensor, torch.full((1,), float(me.size)), "all_reduce at this level")
    finally:
        d.set_debug_level(before)


@family.case(
    "debug_level",
    "from the environment",
    over={"level": ("OFF", "INFO", "DETAIL")},
)
def debug_level_from_env(me: Context, level: str) -> None:
    before, old = d.get_debug_level(), os.environ.get("TORCH_DISTRIBUTED_DEBUG")
    try:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
        d.set_debug_level_from_env()
        me.equal(d.get_debug_level(), getattr(d.DebugLevel, level), "get_debug_level")
    finally:
        d.set_debug_level(before)
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG")
        if old is not None:
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = old


@family.case(
    "debug_level",
    "groups made at",
    over={"level": ("INFO", "DETAIL")},
    bare=True,
    least=2,
)
def groups_made_at(me: Context, level: str) -> None:
    before = d.get_debug_level()
    try:
        d.set_debug_level(getattr(d.DebugLevel, level))
        init(me, "file")
        works(me)
        group = dist.new_group()
        works(me, group)
    finally:
        d.set_debug_level(before)
        leave()


def init(me: Context, method: str, **more: Any) -> None:
    """Make the default group in one of the ways there are."""
    backend = more.pop("backend", me.backend)
    where: dict[str, Any] = {"rank": me.rank, "world_size": me.size}
    more.setdefault("timeout", TIMEOUT)
    if method == "file":
        path = me.scratch / me.name("init")
        dist.init_process_group(backend, init_method=f"file://{path}", **where, **more)
    elif method == "store":
        store = d.FileStore(str(me.scratch / me.name("store")), me.size)
        dist.init_process_group(backend, store=store, **where, **more)
    elif method == "tcp":
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        method = f"tcp://{address}:{port}"
        dist.init_process_group(backend, init_method=method, **where, **more)
    elif method == "env":
        dist.init_process_group(backend, init_method="env://", **more)
    else:
        dist.init_process_group(backend, **more)


def works(me: Context, group: Any = None) -> None:
    tensor = torch.full((2,), float(me.rank + 1), device=me.device)
    dist.all_reduce(tensor, group=group)
    me.equal(tensor, torch.full((2,), me.size * (me.size + 1) / 2), "all_reduce")


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@family.case(
    "init_process_group",
    "by",
    over={"method": METHODS},
    bare=True,
)
def init_by(me: Context, method: str) -> None:
    me.check(not dist.is_initialized(), "initialized before")
    try:
        init(me, method)
        me.check(dist.is_initialized(), "not initialized")
        me.equal((dist.get_rank(), dist.get_world_size()), (me.rank, me.size), "who is who")
        works(me)
    finally:
        leave()
    me.check(not dist.is_initialized(), "still initialized")


@family.case(
    "init_process_group",
    "backend",
    over={"backend": ("none", "cpu:gloo", "gloo")},
    bare=True,
    needs="gloo",
)
def init_backend(me: Context, backend: str) -> None:
    """Without a name torch takes the backend of the accelerator, if the machine has one."""
    if backend == "none" and torch.accelerator.is_available():
        return
    try:
        init(me, "file", backend=None if backend == "none" else backend)
        works(me)
        me.check("gloo" in dist.get_backend_config(), "no Gloo in the configuration")
    finally:
        leave()


@family.case(
    "init_process_group",
    "again",
    over={"times": (3,), "method": ("file", "store")},
    bare=True,
)
def init_again(me: Context, times: int, method: str) -> None:
    for _ in range(times):
        try:
            init(me, method)
            works(me)
            works(me, dist.new_group())
        finally:
            leave()


@family.case("init_process_group", "uninitialised use", bare=True)
def uninitialised_use(me: Context) -> None:
    me.check(not dist.is_initialized(), "initialized")
    tensor = torch.ones(1, device=me.device)
    me.raises(ValueError, lambda: dist.all_reduce(tensor), "all_reduce")
    me.raises(ValueError, dist.get_rank, "get_rank")
    me.raises(ValueError, dist.barrier, "barrier")
    me.raises((ValueError, AssertionError), dist.destroy_process_group, "destroy")


@family.case("init_process_group", "wrong arguments", bare=True)
def wrong_arguments(me: Context) -> None:
    errors = (ValueError, AssertionError, RuntimeError, TypeError)
    me.raises(errors, lambda: d.init_process_group("gloo", init_method="what://x"), "method")
    me.raises(
        errors, lambda: d.init_process_group("gloo", init_method="env://", store=1), "both"
    )
    me.raises(errors, lambda: d.init_process_group("gloo", timeout=5), "timeout")
    me.check(not dist.is_initialized(), "initialized by a wrong call")


@family.case(
    "new_group",
    "use_local_synchronization",
    bare=True,
    least=3,
)
def local_synchronization(me: Context) -> None:
    """Only the members call."""
    try:
        init(me, "file")
        members = list(range(1, me.size))
        if me.rank in members:
            group = dist.new_group(members, use_local_synchronization=True)
            tensor = torch.ones(1, device=me.device)
            dist.all_reduce(tensor, group=group)
            me.equal(tensor, torch.full((1,), float(len(members))), "sum of the members")
        dist.barrier()
    finally:
        leave()


@family.case("init_device_mesh", "without a group", bare=True)
def mesh_without_group(me: Context) -> None:
    try:
        init(me, "file")
        mesh = d.init_device_mesh(me.device, (me.size,))
        works(me, mesh.get_group())
    finally:
        leave()
