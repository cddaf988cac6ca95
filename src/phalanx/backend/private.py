"""Every private torch name that Phalanx touches: the name, the reason, the versions.

Nothing else in the package may use a name of torch that starts with an underscore; a test
holds that. Checked with torch 2.11 (CUDA) and 2.13 (CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed.distributed_c10d as _module

# Typed as Any because torch's stubs leave several of these names out.
_c10d: Any = torch._C._distributed_c10d

# 2.11-2.13: state of the package, one object per process. Ranks need one each, so the object
# is replaced during runs; torch calls it an extension point ("experimental").
WORLD_NAME = "_world"

# 2.11-2.13: the classes that `init_process_group` and `new_group` instantiate for "gloo" and
# "nccl", looked up by these names in the module; and the function that finds the store.
# Both are public names, replaced during runs, and stand here because they are replaced.
GLOO_NAME = "ProcessGroupGloo"
NCCL_NAME = "ProcessGroupNCCL"
RENDEZVOUS_NAME = "rendezvous"

c10d_module = _module


def set_thread_isolation(enabled: bool) -> None:
    """2.11-2.13: keep the C++ map from group name to group per thread. Without it the second
    rank that registers the name "0" is refused."""
    _c10d._set_thread_isolation_mode(enabled)


def register_group(name: str, group: torch.distributed.ProcessGroup) -> None:
    """2.11-2.13: functional collectives resolve groups by name in the calling thread's map,
    so a thread that a rank started needs the rank's groups in its own."""
    _c10d._register_process_group(name, group)


def unregister_groups() -> None:
    """2.11-2.13: empty the calling thread's map, or the groups live as long as the process."""
    _c10d._unregister_all_process_groups()


def is_in_backward() -> bool:
    """2.11-2.13: whether the calling thread is inside the autograd engine."""
    return bool(torch._C._current_graph_task_id() != -1)


def call_after_backward(callback: Callable[[], None]) -> None:
    """2.11-2.13: run `callback` at the end of the current backward pass, in order of queueing.
    DDP's reducer queues its own native wait after its last bucket, hence after ours."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def replace_names(**names: Any) -> dict[str, Any]:
    """Replace module attributes of `distributed_c10d`; what was there, to put back."""
    before = {name: getattr(_module, name) for name in names}
    for name, value in names.items():
        setattr(_module, name, value)
    return before


def original_world() -> Any:
    return getattr(_module, WORLD_NAME)


def make_premul_sum(factor: float | torch.Tensor) -> Any:
    """2.11-2.13: the only way to write `ReduceOp.PREMUL_SUM` with its factor."""
    return _c10d._make_nccl_premul_sum(factor)


def coalescing_manager(group: Any = None, *, async_ops: bool = False) -> Any:
    """2.11-2.13: joins the calls made inside of it into one; FSDP and DTensor use it."""
    return _module._coalescing_manager(group, async_ops=async_ops)


def functional_collectives() -> Any:
    """2.11-2.13: the traceable collectives, which DTensor and compiled programs use."""
    return import_module("torch.distributed._functional_collectives")
