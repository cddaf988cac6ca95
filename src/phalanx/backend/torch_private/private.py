"""Every private torch name that Phalanx touches: the name, the reason, the versions.

Nothing else in the package may use a name of torch that starts with an underscore; a test
holds that. Checked with torch 2.11 (CUDA) and 2.13 (CPU).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from importlib import import_module
from logging import NullHandler
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as _module
import torch.profiler
from torch._subclasses.fake_tensor import FakeTensor

from phalanx.backend.torch_private import private_modes
from phalanx.core.strand import here

Patches = Iterable[tuple[Any, str, Any]]
"""Owner, name, replacement."""

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

# 2.11-2.13: what those functions make a group by, replaced while a rank is watched. It gets the
# number of members, the rank among them, all of them, the backend, the store, the name.
NEW_GROUP_NAME = "_new_process_group_helper"

# 2.11-2.13: broadcasts many tensors and waits for that in C++; libraries call it, too.
COALESCED_NAME = "_broadcast_coalesced"

# 2.11-2.13: what those functions look at first. A build without NCCL has no class, and None
# for the timeout; ranks get a group that behaves as NCCL's all the same.
NCCL_AVAILABLE_NAME = "is_nccl_available"
NCCL_TIMEOUT_NAME = "default_pg_nccl_timeout"

# 2.11-2.13: what functions of c10d call, to warn, where a rank uses a group that it is not in.
# Nothing else tells that the program did so.
WARN_OUTSIDER_NAME = "_warn_not_in_group"

# 2.11-2.13: where torch keeps once per process what ranks need once each. For each module, once
# it is imported: places as "module:path of attributes". FSDP's clock of its own; the handlers
# that `loss_parallel` and context parallelism put in; the attention function that the latter
# replaces, and its state.
_SHARDING_RULES = "torch.distributed.tensor.experimental._context_parallel._sharding_rules"
_ATTENTION = "torch.distributed.tensor.experimental._context_parallel._attention"
PER_PROCESS = {
    "torch.distributed.fsdp._debug_utils": (
        "torch.distributed.fsdp._debug_utils:SimpleProfiler.results",
        "torch.distributed.fsdp._debug_utils:SimpleProfiler.profiling",
    ),
    "torch.distributed.tensor._api": (
        "torch.distributed.tensor._api:DTensor._op_dispatcher._custom_op_handlers",
    ),
    _ATTENTION: (
        "torch.nn.functional:scaled_dot_product_attention",
        f"{_ATTENTION}:_replaced_functions",
        f"{_ATTENTION}:_dispatch_mode",
        f"{_ATTENTION}:_cp_options",
    ),
    _SHARDING_RULES: (
        f"{_SHARDING_RULES}:_cp_strategy_contexts",
        f"{_SHARDING_RULES}:_original_strategies",
    ),
    "torch.distributed._shard.api": ("torch.distributed._shard.api:_CURRENT_PROCESS_GROUP",),
    "torch._dynamo.backends.distributed": (
        "torch.nn.parallel.distributed:DistributedDataParallel._active_ddp_module",
    ),
    "torch.distributed.fsdp._fully_shard._fully_shard": (
        "torch.distributed.fsdp._fully_shard._fully_shard:_enable_fsdp_module_new_init",
    ),
}

# 2.11-2.13: hooks for all modules and optimizers of a process. `CommDebugMode` uses them to
# know where in a model it is; a rank's must not fire for the modules of others. Mostly empty,
# and then not swapped.
GLOBAL_HOOKS = {
    "torch.nn.modules.module": (
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_is_full_backward_hook",
        "_global_forward_pre_hooks",
        "_global_forward_hooks",
        "_global_forward_hooks_always_called",
        "_global_forward_hooks_with_kwargs",
        "_global_buffer_registration_hooks",
        "_global_module_registration_hooks",
        "_global_parameter_registration_hooks",
    ),
    "torch.optim.optimizer": (
        "_global_optimizer_pre_hooks",
        "_global_optimizer_post_hooks",
    ),
}

c10d_module = _module

# 2.11-2.13: DDP's method that returns what its C++ logger gathered; corrected for ranks.
DDP_LOG_NAME = "_get_ddp_logging_data"

# 2.11-2.13: looks at the list that `batch_isend_irecv` was given, before anything is sent.
CHECK_BATCH_NAME = "_check_p2p_op_list"


def set_thread_isolation(enabled: bool) -> None:
    """2.11-2.13: keep the C++ map from group name to group per thread. Without it the second
    rank that registers the name "0" is refused."""
    _c10d._set_thread_isolation_mode(enabled)


def register_group(name: str, group: torch.distributed.ProcessGroup) -> None:
    """2.11-2.13: functional collectives resolve groups by name in the calling thread's map,
    so a thread that a rank started needs the rank's groups in its own."""
    _c10d._register_process_group(name, group)


def register_once(name: str, group: torch.distributed.ProcessGroup) -> None:
    """The same, unless the calling thread's map has the name already."""
    try:
        _c10d._resolve_process_group(name)
    except RuntimeError:
        register_group(name, group)


def unregister_groups() -> None:
    """2.11-2.13: empty the calling thread's map, or the groups live as long as the process."""
    _c10d._unregister_all_process_groups()


def keep_backward_in_thread() -> None:
    """2.11-2.13: what `torch.autograd.set_multithreading_enabled(False)` does, without the
    object that could undo it: every rank of every test calls this."""
    torch._C._set_multithreading_enabled(False)


def per_process_attributes(module: str) -> Iterator[tuple[Any, str]]:
    """Owner and name of the attributes that come with this module."""
    for place in PER_PROCESS.get(module, ()):
        where, _, path = place.partition(":")
        *steps, name = path.split(".")
        owner: Any = sys.modules[where]
        for step in steps:
            owner = getattr(owner, step)
        if hasattr(owner, name):  # some came with later versions
            yield owner, name


_OUR_FOLDER = str(Path(__file__).parents[2])


def _skip_our_frames(module: Any) -> Patches:
    """2.11-2.13: tell dynamo not to compile the Python methods of our groups. Done once, since
    it then compiles its patterns anew; it is harmless outside of runs."""
    if not any(_OUR_FOLDER in folder for folder in module.SKIP_DIRS):
        module.add("phalanx")
    return ()


def _unbind_groups(module: Any) -> Patches:
    """2.11-2.13: functions here have `group=group.WORLD` as a default. In a process that is
    None as a rule, for the default group, because imports come first; a rank that imports
    the module later binds its own group for all."""
    for function in vars(module).values():
        if isinstance(function, FunctionType) and function.__defaults__:
            function.__defaults__ = tuple(
                None if isinstance(value, torch.distributed.ProcessGroup) else value
                for value in function.__defaults__
            )
    return ()


def _save_by_a_process_of_ones_own(module: Any) -> Patches:
    """2.11-2.13: `async_save` by a process keeps that process in a global variable. The two
    methods that use it get, in a rank, the rank's own globals."""
    executor = module._ProcessBasedAsyncCheckpointExecutor
    names = ("_execute_save_impl", "execute_save")
    originals = {name: vars(executor)[name] for name in names}

    def own(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            strand = here.strand
            if strand is None:
                return function(*args, **kwargs)
            variables = strand.local.saved.setdefault(
                "checkpoint process", {**vars(module), "_CHECKPOINT_PROCESS": None}
            )
            mine = FunctionType(
                function.__code__,
                variables,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            mine.__kwdefaults__ = function.__kwdefaults__
            return mine(*args, **kwargs)

        return call

    impl, save = names
    return [
        (executor, impl, staticmethod(own(originals[impl].__func__))),
        (executor, save, own(originals[save])),
    ]


AFTER_IMPORT: dict[str, Callable[[Any], Patches]] = {
    "torch._dynamo.trace_rules": _skip_our_frames,
    "torch._dynamo.convert_frame": private_modes.wait_for_compiler_in_turn,
    "torch._dynamo.eval_frame": private_modes.prepare_eval_frame,
    "torch.distributed.nn.functional": _unbind_groups,
    "torch.distributed.checkpoint._async_process_executor": _save_by_a_process_of_ones_own,
}
"""Corrections to make in a module after its import: the names that are to be replaced."""


def set_mesh_owner(mesh: Any, rank: int) -> None:
    """2.11-2.13: part of a mesh's equality, meant for ranks that are threads; torch fills it
    for its own threaded group only. The rank, because its helper threads share its meshes."""
    mesh._thread_id = rank
    mesh._hash = None


def has_nccl() -> bool:
    """2.11-2.13: whether this build of torch can tell the version of NCCL."""
    return hasattr(torch._C, "_nccl_version")


def is_in_backward() -> bool:
    """2.11-2.13: whether the calling thread is inside the autograd engine."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_first_of_batch(frame: Any) -> bool:
    """2.11-2.13: whether this frame of `batch_isend_irecv` is at its first operation."""
    values = frame.f_locals
    batch, current = values.get("p2p_op_list"), values.get("p2p_op")
    return bool(batch) and current is batch[0]


# 2.11-2.13: what `backward` and `torch.autograd.grad` run the autograd engine with.
BACKWARD_NAME = "_engine_run_backward"


def call_after_backward(callback: Callable[[], None]) -> None:
    """2.11-2.13: run `callback` at the end of the current backward pass, in order of queueing.
    DDP's reducer queues its own native wait after its last bucket, hence after ours."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def original_world() -> Any:
    return getattr(_module, WORLD_NAME)


def tables_of_groups() -> list[Any]:
    """2.11-2.13: all tables in which torch itself keeps the groups of a process."""
    world = original_world()
    tables = [world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config]
    tables += [world.pg_to_tag, world.pg_coalesce_state, *world.tags_to_pg.values()]
    return tables


def make_premul_sum(factor: float | torch.Tensor) -> Any:
    """2.11-2.13: the only way to write `ReduceOp.PREMUL_SUM` with its factor."""
    return _c10d._make_nccl_premul_sum(factor)


def coalescing_manager(group: Any = None, *, async_ops: bool = False) -> Any:
    """2.11-2.13: joins the calls made inside of it into one; FSDP and DTensor use it."""
    return _module._coalescing_manager(group, async_ops=async_ops)


def functional_collectives() -> Any:
    """2.11-2.13: the traceable collectives, which DTensor and compiled programs use."""
    return import_module("torch.distributed._functional_collectives")


_profiler_enabled: Any = vars(torch.autograd)["_profiler_enabled"]


recording = False
"""Whether anything in the process is being profiled or traced. A cheap flag to ask first."""

tracing = False
"""Whether any rank's execution trace is running; they share one observer."""


def is_profiling() -> bool:
    """2.11-2.13: whether the calling thread is being profiled."""
    return bool(_profiler_enabled())


def is_recorded() -> bool:
    """Whether the calling thread's operations are being profiled or traced."""
    return recording and (tracing or is_profiling())


# 2.11-2.13: how many dispatch modes (`CommDebugMode`) are active in the calling thread.
dispatch_modes: Any = torch._C._len_torch_dispatch_stack


def is_fake(arguments: dict[str, Any]) -> bool:
    """2.11-2.13: whether an operator is called with tensors that have no data; torch's own
    kernels for those follow ours."""
    first = next(iter(arguments.values()))
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    return isinstance(first, FakeTensor) or (isinstance(first, torch.Tensor) and first.is_meta)


def record_functions(enabled: bool) -> None:
    """2.11-2.13: whether profilers and traces see what the calling thread does. What we do
    to move data belongs to no rank."""
    torch._C._autograd._enable_record_function(enabled)


# 2.11-2.13: how many `TorchFunctionMode`s are active in the calling thread, and the context
# that turns them off.
function_modes: Any = torch._C._len_torch_function_stack
no_function_modes: Any = torch._C.DisableTorchFunction

# 2.11-2.13: an event of the profiler that carries tensors, hence shapes. The public
# `record_function` takes none, and Gloo's events have them.
ProfilerRange: Any = torch._C._profiler._RecordFunctionFast


def comm_profiling_name() -> str | None:
    """2.13 only: the name that `torch.distributed.record_comm` gives the events inside it."""
    get = getattr(_c10d, "_get_comm_profiling_name", None)
    return (get() or None) if get is not None else None


def start_unnamed(start: Callable[[], None]) -> None:
    """2.13 only: the constructor of `Work` begins an event of its own under the name above;
    ours has one already, with the tensors."""
    name = comm_profiling_name()
    if name is not None:
        _c10d._set_comm_profiling_name("")
    start()
    if name is not None:
        _c10d._set_comm_profiling_name(name)


def library_of(namespace: str) -> torch.library.Library:
    """Public, but torch's stubs have no types for it."""
    make: Any = torch.library.Library
    library: torch.library.Library = make(namespace, "IMPL")
    return library


def serve_operator(library: torch.library.Library, name: str, serve: Any) -> None:
    """2.11-2.13: make `serve(arguments)` carry out `c10d::name`, where the group is ours.

    It is put before the kernels of all devices and behind the dispatch modes, and passes on
    what it does not know: groups of torch's own. `arguments` is a dict by the names of the
    operator's schema, which differ little between versions.
    """
    operator: Any = getattr(torch.ops.c10d, name).default
    names = [argument.name for argument in operator._schema.arguments]
    select = torch._C.DispatchKey.BackendSelect

    def kernel(keys: Any, *given: Any, **named: Any) -> Any:
        result = serve({**dict(zip(names, given, strict=False)), **named})
        if result is NotImplemented:
            return operator.redispatch(keys.remove(select), *given, **named)
        first, work = result
        kinds = len(operator._schema.returns)
        return (first, work.boxed()) if kinds == 2 else work.boxed() if kinds else None

    register: Any = library.impl
    register(name, kernel, "BackendSelect", with_keyset=True)


def forget_library(library: torch.library.Library) -> None:
    """2.11-2.13: take what the library registered out of the dispatcher again."""
    destroy: Any = library._destroy
    destroy()


# 2.11-2.13: how profilers start and stop Kineto, by these names in the module; replaced
# during runs, because Kineto serves one profiler at a time.
profiler_module: Any = torch.autograd.profiler
PREPARE_NAME = "_prepare_profiler"
NOTE_NAME = "_add_metadata_json"
autograd_module: Any = torch.autograd
add_profiler_note: Any = vars(torch.autograd)[NOTE_NAME]
ENABLE_NAME = "_enable_profiler"
DISABLE_NAME = "_disable_profiler"


def retire_trace_observer(observer: Any) -> None:
    """2.11-2.13: an observer that a rank left behind must not touch the process's when it is
    collected."""
    observer._registered = observer._execution_trace_running = False


def is_registered_observer(thing: Any) -> bool:
    """By its type alone: `isinstance` would ask any object for its class, also the proxy of
    one that is gone, which raises."""
    return torch.profiler.ExecutionTraceObserver in type(thing).__mro__ and thing._registered


class TraceObserverFunctions(NamedTuple):
    add: Any
    remove: Any
    enable: Any
    disable: Any


# 2.11-2.13: the process-wide observer behind `ExecutionTraceObserver`, by these names in the
# module of the class; replaced during runs, so that every rank can have a trace of its own.
observer_module: Any = torch.profiler.profiler
TRACE_OBSERVER_NAMES = (
    "_add_execution_trace_observer",
    "_remove_execution_trace_observer",
    "_enable_execution_trace_observer",
    "_disable_execution_trace_observer",
)


def trace_observer_functions() -> TraceObserverFunctions:
    found = [getattr(observer_module, name) for name in TRACE_OBSERVER_NAMES]
    return TraceObserverFunctions(*found)


def is_below_autograd() -> bool:
    """2.11-2.13: whether the calling thread is inside an operator that autograd has dealt with
    already (functional collectives), so that writing in place is allowed there."""
    excluded: Any = torch._C._dispatch_tls_is_dispatch_key_excluded
    return bool(excluded(torch._C.DispatchKey.AutogradCPU))


# -- for phalanx.testing: what torch's own test harness is made of -------------------------


def torch_test_case() -> type | None:
    """2.11-2.13: the base of torch's test classes. Suites count on its `assertEqual`, so ours
    derive from it too; it needs the package expecttest, and is None without."""
    try:
        found: type = import_module("torch.testing._internal.common_utils").TestCase
    except ImportError:
        return None
    return found


def dynamo_test_case() -> type | None:
    """2.11-2.13: the same for tests of torch.compile."""
    try:
        found: type = import_module("torch._dynamo.test_case").TestCase
    except ImportError:
        return None
    return found


def reset_dynamo(*, counters: bool = False) -> None:
    """2.11-2.13: drop compiled code, if there is any, and reset the counters."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
        if counters:
            import_module("torch._dynamo.utils").counters.clear()


def quiet_trace_log() -> None:
    """2.11-2.13: give the log of structured traces a handler, so that it opens no files."""
    import_module("torch._logging._internal").trace_log.addHandler(NullHandler())


def has_multicast_support() -> bool:
    """2.11-2.13: whether GPUs can write to all peers at once."""
    cuda = torch._C._autograd.DeviceType.CUDA
    return bool(_c10d._SymmetricMemory.has_multicast_support(cuda, 0))


def ddp_logging_data(model: Any) -> Any:
    """2.11-2.13: what DDP has written down about a model's run."""
    return getattr(model, DDP_LOG_NAME)()


def default_group() -> Any:
    """2.11-2.13: the group that collectives use when none is named."""
    return _module._get_default_group()


def fake_store() -> Any:
    """2.11-2.13: the store of the "fake" backend, which the module registers."""
    return import_module("torch.testing._internal.distributed.fake_pg").FakeStore()


# 2.11-2.13: the operators of functional collectives.
FUNCTIONAL = "_c10d_functional"


def watch_operator(library: torch.library.Library, name: str, around: Any) -> None:
    """2.11-2.13: have `around(arguments, proceed)` called for an operator, before the kernels
    of all devices; `proceed` carries the call out, perhaps with other arguments, by name. For
    groups of torch's own."""
    operator: Any = getattr(getattr(torch.ops, library.ns), name).default
    names = [argument.name for argument in operator._schema.arguments]
    select = torch._C.DispatchKey.BackendSelect

    def kernel(keys: Any, *given: Any, **named: Any) -> Any:
        def proceed(**changed: Any) -> Any:
            if changed:
                everything = {**dict(zip(names, given, strict=False)), **named, **changed}
                return operator.redispatch(keys.remove(select), **everything)
            return operator.redispatch(keys.remove(select), *given, **named)

        return around({**dict(zip(names, given, strict=False)), **named}, proceed)

    register: Any = library.impl
    register(name, kernel, "BackendSelect", with_keyset=True)


def work_in(result: Any) -> Any:
    """2.11-2.13: the `Work` in what a c10d operator returns; None if there is none."""
    boxed = result[-1] if isinstance(result, tuple) else result
    unbox: Any = _c10d.Work.unbox
    return None if boxed is None else unbox(boxed)


def source_of(work: Any) -> int:
    """2.11-2.13: the rank from which a receive from any source received."""
    return int(work._source_rank())


def store_of(group: Any) -> Any:
    """2.11-2.13: the part of the store that the members of a group share."""
    known = original_world().pg_map.get(group)
    return known[1] if known is not None else group.get_group_store()


def backend_name(group: Any, device: torch.device) -> str:
    """2.11-2.13: the backend of a group for tensors on this device."""
    return str(group._get_backend(device).name()).lower()


def group_timeout(group: Any) -> timedelta:
    """2.11-2.13: the time that a group's operations have by default."""
    found = [timedelta(minutes=30)]
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        limit = getattr(options, "_timeout", None)
        found += [limit] if limit is not None else []
    return min(found)


def put_groups_away() -> list[Any]:
    """2.11-2.13: leave all groups as `destroy_process_group` does, but do not end them: they
    live as long as the caller keeps them."""
    world = original_world()
    groups = list(world.pg_map)
    _module._update_default_pg(None)
    for name in ("map", "names", "group_ranks", "backend_config", "to_tag", "coalesce_state"):
        getattr(world, f"pg_{name}").clear()
    world.tags_to_pg.clear()
    world.group_count = 0
    unregister_groups()
    return groups
