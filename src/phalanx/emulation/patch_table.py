"""Every name of torch, of the standard library and of pytest that Phalanx replaces: one table.

Each row says what is replaced, what for, when it is in force and how it is undone. It is data
only: `patch_installer.py` refuses what has no row here, `phalanx doctor --patches` prints it,
and a test counts it. What replaces a name stands beside the feature that needs it.

To replace one more name, add a row here and hand (owner, name, replacement) to `put_in`. Before
that, weigh whether the program that needs it cannot take `--engine processes`: the number of
rows only goes down. Names that this version of Python or torch does not have are left out when
the others are installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PUT_BACK = "put back as it was"
IF_STILL_OURS = "put back, unless somebody has replaced ours since"
WITH_PROCESS = "stays until the process ends, which is a rank or a launcher of ours"
SWAPPED = "swapped with the baton: each rank has its own value, the caller's comes back"

THREADS = "threads"
IMPORTED = "imported"
HELPERS = "helper threads"
OWN_MODULES = "own modules"
SELF_SPAWNING = "self-spawning"
FEWER_GPUS = "fewer GPUs"
VIRTUAL_CLOCK = "virtual clock"
COMMAND_LINE = "command line"
PYTEST = "pytest"
WATCHED = "watched"
RANK_PROCESS = "rank process"
LAUNCHER = "torchrun launcher"
BLACK_BOX = "black box"

MODES = {
    THREADS: "while a world on threads is open",
    IMPORTED: "on threads, from when the program has imported that part of torch",
    HELPERS: "on threads, from when a rank has started a thread",
    OWN_MODULES: "on threads, while ranks have modules of their own: scripts, and isolate=",
    SELF_SPAWNING: "on threads, while a script runs that starts its ranks itself",
    FEWER_GPUS: "on threads, while ranks name GPUs that are not there",
    VIRTUAL_CLOCK: "on threads, while a run has a virtual clock: --clock virtual",
    COMMAND_LINE: "on threads, while the command line shows what ranks print",
    PYTEST: "on threads, while pytest runs tests on ranks",
    WATCHED: "in ranks that are processes (engine processes, torchrun) while they are watched",
    RANK_PROCESS: "in ranks that are processes (engine processes, torchrun), at all times",
    LAUNCHER: "in the process that --engine torchrun starts for torch's launcher",
    BLACK_BOX: "in ranks of other launchers, from phalanx.blackbox.install to uninstall",
}


class PatchRow(NamedTuple):
    """One replaced name. `name` is "*" where a module's functions are replaced one and all."""

    owner: str
    name: str
    when: str
    why: str
    undo: str = PUT_BACK
    also: str = ""
    """Another mode, in which it is replaced for the same reason."""

    @property
    def path(self) -> str:
        return f"{self.owner}.{self.name}"


def _rows(
    when: str, why: str, *names: str, undo: str = PUT_BACK, also: str = ""
) -> Iterator[PatchRow]:
    """One row for each dotted name; "os.stat listdir" has two names of one owner."""
    for some in names:
        first, *others = some.split()
        owner, _, name = first.rpartition(".")
        for each in (name, *others):
            yield PatchRow(owner, each, when, why, undo, also)


_C10D = "torch.distributed.distributed_c10d"

_WAITING = (
    *_rows(
        THREADS,
        "a rank that sleeps, or waits for a thread, a lock's condition or a selector, lets "
        "the other ranks run, and is known to wait",
        "time.sleep",
        "threading.Condition.wait",
        "threading.Thread.join",
        "selectors.SelectSelector.select",
        "selectors.PollSelector.select",
        "selectors.EpollSelector.select",
    ),
    *_rows(
        THREADS,
        "a rank that waits for another process lets the other ranks run",
        "subprocess.Popen.wait communicate",
        "multiprocessing.connection.Connection.recv_bytes poll",
        "multiprocessing.connection.wait",
        "os.waitpid",
    ),
    *_rows(
        THREADS,
        "a rank that looks for a file again and again lets the other ranks run, one of which "
        "is to write it",
        "os.stat listdir scandir",
    ),
    *_rows(
        THREADS,
        "a rank that waits for a key, or changes one, is seen by the others, and the journal "
        "tells of it",
        "torch.distributed.Store.set add append compare_set multi_set queue_push delete_key",
        "torch.distributed.Store.get wait multi_get queue_pop check",
        "torch.distributed.PrefixStore.__init__",
        also=WATCHED,
    ),
    *_rows(
        THREADS,
        "a rank that waits for others to come to a store lets them run",
        "torch.distributed.TCPStore.__init__",
        "torch.distributed.FileStore.__init__",
    ),
)

_THREADS_AND_CHILDREN = (
    *_rows(
        THREADS,
        "a thread that a rank starts, and a job that it gives to a pool, belong to the rank",
        "threading.Thread.start",
        "concurrent.futures.ThreadPoolExecutor.submit __init__",
    ),
    *_rows(
        THREADS,
        "programs ask whether they are in the main thread: a rank's own thread is",
        "threading.main_thread",
    ),
    *_rows(
        THREADS,
        "a process that a rank starts gets the rank's environment, output and cores, and ends "
        "with the rank",
        "subprocess.Popen.__init__",
        "multiprocessing.util.spawnv_passfds",
        "os.fork system",
    ),
    *_rows(
        THREADS,
        "what a rank starts belongs to it, and what a script starts may be a rank",
        "multiprocessing.context.ForkProcess._Popen",
        "multiprocessing.context.SpawnProcess._Popen",
        "multiprocessing.context.ForkServerProcess._Popen",
        also=RANK_PROCESS,
    ),
    *_rows(
        THREADS,
        "a rank that counts its cores gets all that the process has",
        "os.sched_getaffinity",
    ),
    *_rows(
        THREADS,
        "a rank sees its own child processes, not those of other ranks",
        "multiprocessing.active_children",
        "multiprocessing.process.active_children",
        "torch.multiprocessing.active_children",
    ),
    *_rows(
        THREADS,
        "each rank has a fork server of its own, made in its environment",
        "multiprocessing.forkserver.connect_to_new_process ensure_running",
    ),
    *_rows(
        THREADS,
        "the folder for sockets outlives the rank that asked for it first",
        "multiprocessing.util.get_temp_dir",
    ),
    *_rows(
        THREADS,
        "what a rank has put into a queue is sent before the rank ends",
        "multiprocessing.queues.Queue._start_thread",
    ),
    *_rows(
        THREADS,
        "workers of a rank's data loaders end with the rank",
        "torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__init__ __del__",
    ),
)

_STATE_OF_PYTHON = (
    *_rows(
        THREADS,
        "os._exit and os.abort end the rank that calls them, not the process",
        "os._exit abort",
    ),
    *_rows(
        THREADS,
        "what a rank registers for the end of the process happens at the end of the rank",
        "atexit.register unregister",
        "weakref.finalize.__init__",
        "multiprocessing.util.Finalize.__init__",
    ),
    *_rows(
        THREADS,
        "each rank has its own environment variables",
        "os.environ.__class__",
        "os.environb.__class__",
    ),
    *_rows(
        THREADS,
        "each rank has signal handlers and alarms of its own, and a signal to itself is for it",
        "signal.signal getsignal raise_signal alarm",
        "os.kill",
    ),
    *_rows(
        THREADS,
        "a rank that puts a file at descriptor 1 or 2 does so for itself",
        "os.dup2",
    ),
    *_rows(
        THREADS,
        "the current folder is each rank's own, where the system cannot keep it per thread",
        "os.chdir fchdir",
    ),
    *_rows(
        THREADS,
        "each rank configures logging for itself; handlers that it makes are closed at its end",
        "logging.Logger.level propagate disabled handlers filters _cache",
        "logging.Manager._disable",
        "logging._addHandlerRef shutdown",
    ),
    *_rows(
        THREADS,
        "a warning names the program's line where the frame that torch takes is ours",
        "warnings.WarningMessage",
        also=WATCHED,
    ),
    *_rows(
        THREADS,
        "torch wraps it anew at every init_process_group",
        "sys.excepthook",
    ),
)

_STATE_OF_TORCH = (
    *_rows(
        THREADS,
        "each rank has groups of its own: a table of them, stores, and the classes for Gloo "
        "and NCCL that lead to this backend",
        f"{_C10D}._world rendezvous ProcessGroupGloo ProcessGroupNCCL is_nccl_available "
        "default_pg_nccl_timeout",
        "torch.distributed.rendezvous",
    ),
    *_rows(
        THREADS,
        "all ranks' creations of groups are compared, members' and others'",
        f"{_C10D}._new_process_group_helper",
    ),
    *_rows(
        THREADS,
        "messages that are sent as one batch are known to belong together",
        f"{_C10D}._check_p2p_op_list",
    ),
    *_rows(
        THREADS,
        "a call on a group that the rank is not in is reported",
        f"{_C10D}._warn_not_in_group",
    ),
    *_rows(
        THREADS,
        "each rank has its own debug level, read from its own environment",
        f"{_C10D}.get_debug_level",
        "torch.distributed.get_debug_level set_debug_level set_debug_level_from_env",
    ),
    *_rows(
        THREADS,
        "torch logs errors of collectives there, once per rank and with the whole report",
        "torch.distributed.c10d_logger._c10d_logger.filters",
    ),
    *_rows(
        THREADS,
        "asked for when a group named nccl fails; not every build has it",
        "torch.cuda.nccl.version",
    ),
    *_rows(
        THREADS,
        "the last Work of a rank's Join stays alive until it is waited for",
        "torch.distributed.algorithms.join.Join.notify_join_context",
    ),
    *_rows(
        THREADS,
        "reports name the parameters of models that ranks wrap, and DDP's log the backend",
        "torch.nn.parallel.DistributedDataParallel.__init__ _get_ddp_logging_data",
    ),
    *_rows(
        THREADS,
        "plans that DTensor remembers by mesh hold for one rank",
        "torch.distributed.device_mesh.DeviceMesh.__init__",
    ),
    *_rows(
        THREADS,
        "buffers of operations that hooks begin in backward are guarded afterwards",
        "torch.autograd._engine_run_backward",
        also=WATCHED,
    ),
    *_rows(
        THREADS,
        "a rank that waits for the device has waited for its collectives there",
        "torch.cuda.synchronize",
        "torch.cuda.Stream.synchronize",
        "torch.cuda.Event.synchronize",
        "torch.accelerator.synchronize",
    ),
    *_rows(
        THREADS,
        "profilers of several ranks share the one that a process has",
        "torch.autograd.profiler._prepare_profiler _enable_profiler _disable_profiler",
        "torch.autograd._add_metadata_json",
    ),
    *_rows(
        THREADS,
        "execution traces of several ranks share the observer that a process has",
        "torch.profiler.ExecutionTraceObserver.register_callback",
        "torch.profiler.profiler._add_execution_trace_observer "
        "_remove_execution_trace_observer _enable_execution_trace_observer "
        "_disable_execution_trace_observer",
    ),
    *_rows(
        THREADS,
        "a thread of a rank that seeds torch, or asks for its generator, waits for its turn",
        "torch.manual_seed get_rng_state set_rng_state",
        "torch.random.manual_seed get_rng_state set_rng_state",
    ),
    *_rows(
        THREADS,
        "a seed that a rank gives before CUDA is initialised is kept for that rank",
        "torch.cuda.random._lazy_call",
        "torch.cuda._lazy_init",
        "torch.cuda.random._lazy_init",
        "torch.cuda.memory._lazy_init",
    ),
    *_rows(
        THREADS,
        "a rank's seed for an accelerator that torch was built without is nobody else's",
        "torch.xpu.random._lazy_call",
        "torch.mtia._lazy_call",
    ),
    *_rows(
        THREADS,
        "hooks for all modules or optimizers that a rank registers are that rank's",
        "torch.nn.modules.module._global_backward_pre_hooks _global_backward_hooks "
        "_global_forward_pre_hooks _global_forward_hooks "
        "_global_forward_hooks_always_called _global_forward_hooks_with_kwargs "
        "_global_buffer_registration_hooks _global_module_registration_hooks "
        "_global_parameter_registration_hooks",
        "torch.optim.optimizer._global_optimizer_pre_hooks _global_optimizer_post_hooks",
    ),
    *_rows(
        THREADS,
        "what a rank changes here holds for that rank",
        "torch.set_num_threads set_num_interop_threads set_anomaly_enabled",
        "torch.backends.ContextProp.__set__",
        "torch._C._set_default_dtype _set_default_tensor_type _set_deterministic_algorithms",
        "torch._C._set_cudnn_allow_tf32 _set_cudnn_benchmark _set_cudnn_deterministic "
        "_set_cudnn_enabled",
        "torch._C._set_mkldnn_deterministic _set_mkldnn_enabled",
        "torch._C._set_cublas_allow_tf32 _set_onednn_allow_tf32 _set_float32_matmul_precision "
        "_set_fp32_precision_setter",
        "torch._C._set_sdp_priority_order _set_sdp_use_cudnn _set_sdp_use_flash "
        "_set_sdp_use_math _set_sdp_use_mem_efficient _set_sdp_use_overrideable",
    ),
)

_LATER_ON_THREADS = (
    *_rows(
        IMPORTED,
        "ranks compile one after the other, and what is compiled is kept per rank",
        "torch._dynamo.convert_frame.compile_lock",
        "torch._dynamo.eval_frame.set_eval_frame _maybe_set_eval_frame "
        "set_eval_frame_isolate_recompiles_id",
    ),
    *_rows(
        IMPORTED,
        "each rank that saves by a process has that process for itself",
        "torch.distributed.checkpoint._async_process_executor."
        "_ProcessBasedAsyncCheckpointExecutor._execute_save_impl execute_save",
    ),
    *_rows(
        HELPERS,
        "a thread of a rank draws its rank's random numbers, whichever rank runs",
        "random.*",
        "numpy.random.*",
    ),
    *_rows(
        OWN_MODULES,
        "an import in a rank gives that rank's module",
        "builtins.__import__",
        undo=IF_STILL_OURS,
    ),
    *_rows(
        OWN_MODULES,
        "an import in a rank gives that rank's module",
        "importlib._bootstrap._get_module_lock",
        "sys.modules",
    ),
    *_rows(
        OWN_MODULES,
        "what each rank's copy of a module registers with torch is registered once",
        "torch.library.Library.__init__ define impl _register_fake _destroy",
        "torch.distributed.Backend.register_backend",
        "torch._weights_only_unpickler._get_user_allowed_globals",
    ),
    *_rows(
        OWN_MODULES,
        "ranks that agree may each choose the start method once",
        "multiprocessing.set_start_method",
        "torch.multiprocessing.set_start_method",
    ),
    *_rows(
        SELF_SPAWNING,
        "the first init_process_group says that the processes started so far are the ranks",
        "torch.distributed.init_process_group",
        f"{_C10D}.init_process_group",
    ),
    *_rows(
        SELF_SPAWNING,
        "a rank that the program takes for a process has a process and a parent",
        "multiprocessing.process.current_process parent_process",
        "multiprocessing.current_process parent_process",
        "torch.multiprocessing.current_process parent_process",
    ),
    *_rows(
        SELF_SPAWNING,
        "a file store that a forked rank inherits stays open",
        "torch.distributed.FileStore.__init__",
    ),
    *_rows(
        VIRTUAL_CLOCK,
        "a rank that reads the time sees what its sleeps have skipped",
        "time.time time_ns monotonic monotonic_ns perf_counter perf_counter_ns",
        "datetime.datetime.now utcnow",
    ),
    *_rows(
        VIRTUAL_CLOCK,
        "a wait with a timeout passes on the clock of the run, not on the system's",
        "_thread.LockType.acquire",
        "_thread.RLock.acquire",
        "_queue.SimpleQueue.get",
        "select.select",
        "threading._time",
        "queue.time",
        "sched.scheduler.__init__",
    ),
    *_rows(
        FEWER_GPUS,
        "ranks see and name as many GPUs as they are to have",
        "torch.cuda.device_count is_available",
        "torch.cuda._get_device_index",
        "torch.cuda._utils._get_device_index",
        "torch.cuda.memory._get_device_index",
        "torch.accelerator._get_device_index",
        "torch.accelerator._utils._get_device_index",
        "torch.accelerator.memory._get_device_index",
        "torch.accelerator.device_index.__init__",
        "torch.Generator Stream Event",
        "torch.autograd._engine_run_backward",
    ),
    *_rows(
        COMMAND_LINE,
        "what a rank prints is shown with its number",
        "sys.stdout stderr __stdout__ __stderr__",
        "os.write",
    ),
)

_WITH_PYTEST = (
    *_rows(
        PYTEST,
        "each rank has its own way through patches of mock",
        "unittest.mock._patch.__enter__ __exit__ get_original",
        "unittest.mock._patch_dict._patch_dict _unpatch_dict",
    ),
    *_rows(
        PYTEST,
        "pytest looks through all loggers before every test only if one has changed",
        "logging.Logger.propagate",
    ),
    *_rows(
        PYTEST,
        "what a test prints is kept per rank",
        "sys.stdout stderr",
    ),
    *_rows(
        RANK_PROCESS,
        "the debugger, and what a test disables of capturing, work in a rank's process",
        "pdb.set_trace",
        "pytest.set_trace",
        "_pytest.debugging.pytestPDB.set_trace",
        "pytest.CaptureFixture.disabled",
        undo=WITH_PROCESS,
    ),
    *_rows(
        RANK_PROCESS,
        "modules that a rank has imported before pytest are no reason for a warning",
        "_pytest.assertion.rewrite.AssertionRewritingHook._warn_already_imported",
    ),
)

_IN_PROCESSES = (
    *_rows(
        WATCHED,
        "calls, groups and works of a rank are announced to the referee",
        f"{_C10D}._new_process_group_helper _warn_not_in_group",
        "torch.distributed._broadcast_coalesced",
        "torch.distributed.ProcessGroup.shutdown",
        "torch.distributed.Work.wait is_completed is_success synchronize result get_future",
    ),
    *_rows(
        WATCHED,
        "reports name the parameters of models that ranks wrap",
        "torch.nn.parallel.DistributedDataParallel.__init__",
    ),
    *_rows(
        WATCHED,
        "a thread of a pool without work is not waited for",
        "concurrent.futures.ThreadPoolExecutor.submit",
    ),
    *_rows(
        RANK_PROCESS,
        "whether a script has called it decides what its end means; a process that a script "
        "has started is a rank from there on",
        "torch.distributed.init_process_group",
        f"{_C10D}.init_process_group",
    ),
    *_rows(
        RANK_PROCESS,
        "env:// and tcp:// lead to the store that the ranks have in common",
        "torch.distributed.rendezvous._rendezvous_handlers",
        undo=WITH_PROCESS,
    ),
    *_rows(
        RANK_PROCESS,
        "a rank prints line by line, and asks the terminal of the program for input",
        "sys.stdout stderr __stdout__ __stderr__ stdin breakpointhook",
        "builtins.input",
        undo=WITH_PROCESS,
    ),
    *_rows(
        LAUNCHER,
        "ranks know which meeting of the machines they came out of",
        "torch.distributed.elastic.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler."
        "next_rendezvous",
        undo=WITH_PROCESS,
    ),
    *_rows(
        BLACK_BOX,
        "calls of a rank are remembered, to be written down when it hangs or crashes",
        "torch.distributed.ProcessGroup.*",
        "torch.distributed.Work.wait",
        f"{_C10D}._new_process_group_helper",
    ),
)

TABLE: tuple[PatchRow, ...] = (
    *_WAITING,
    *_THREADS_AND_CHILDREN,
    *_STATE_OF_PYTHON,
    *_STATE_OF_TORCH,
    *_LATER_ON_THREADS,
    *_WITH_PYTEST,
    *_IN_PROCESSES,
)
"""Names that are replaced."""

SWAPS: tuple[PatchRow, ...] = tuple(
    _rows(
        THREADS,
        "programs replace it: a rank that does so does it for itself",
        "sys.stdout stderr stdin excepthook displayhook unraisablehook path argv "
        "dont_write_bytecode tracebacklimit",
        "builtins.print input",
        "threading.excepthook",
        "tempfile.tempdir",
        "warnings.filters showwarning _showwarnmsg_impl",
        "logging._warnings_showwarning _logRecordFactory _loggerClass",
        "multiprocessing.context._default_context._actual_context",
        "multiprocessing.process._current_process._name",
        undo=SWAPPED,
    )
)
"""Names that keep what programs put there, for each rank its own; not replaced by us."""
