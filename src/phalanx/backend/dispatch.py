"""Operations that pass through torch's dispatcher, for those who watch there.

A group written in Python is called directly: `CommDebugMode`, dispatch modes of users and the
profiler would see nothing. So while the calling thread is watched, each operation of
`VisibleGroup` first calls the method of the same name of torch's own class, which goes through
the dispatcher; our kernel of the c10d operator then does the work. Unwatched calls take the
short way: three flags are read, nothing else. `install` makes groups of this class.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from phalanx.backend.collectives.reduction import PREMUL_SUM
from phalanx.backend.overloads import options as all_options
from phalanx.backend.process_group import RankGroup
from phalanx.backend.torch_private import private
from phalanx.backend.torch_private.private import dispatch_modes, function_modes

_base: Any = dist.ProcessGroup
_names: Any = distributed_c10d  # torch's stubs leave some option classes out

KEPT = 1024
"""How many works stay referenced for C++ callers: to them a boxed work is no Python object."""


class VisibleGroup(RankGroup):
    """`RankGroup`, and for each operation the way through the dispatcher, which is taken while
    somebody watches. torch's class knows by the *name* of the calling function that it is
    called by its own override, hence the spelled-out methods."""

    def allreduce(self, *args: Any, **kwargs: Any) -> Any:
        return _base.allreduce(self, *args, **kwargs)

    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return _base.allreduce_coalesced(self, *args, **kwargs)

    def broadcast(self, *args: Any, **kwargs: Any) -> Any:
        return _base.broadcast(self, *args, **kwargs)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        return _base.reduce(self, *args, **kwargs)

    def allgather(self, *args: Any, **kwargs: Any) -> Any:
        return _base.allgather(self, *args, **kwargs)

    def allgather_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return _base.allgather_coalesced(self, *args, **kwargs)

    def all_gather_single(self, *args: Any, **kwargs: Any) -> Any:
        return _base.all_gather_single(self, *args, **kwargs)

    def _allgather_base(self, *args: Any, **kwargs: Any) -> Any:
        return _base._allgather_base(self, *args, **kwargs)

    def all_gather_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return _base.all_gather_single_coalesced(self, *args, **kwargs)

    def allgather_into_tensor_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return _base.allgather_into_tensor_coalesced(self, *args, **kwargs)

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        return _base.gather(self, *args, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        return _base.scatter(self, *args, **kwargs)

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Any:
        return _base.reduce_scatter(self, *args, **kwargs)

    def reduce_scatter_single(self, *args: Any, **kwargs: Any) -> Any:
        return _base.reduce_scatter_single(self, *args, **kwargs)

    def _reduce_scatter_base(self, *args: Any, **kwargs: Any) -> Any:
        return _base._reduce_scatter_base(self, *args, **kwargs)

    def reduce_scatter_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return _base.reduce_scatter_single_coalesced(self, *args, **kwargs)

    def reduce_scatter_tensor_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return _base.reduce_scatter_tensor_coalesced(self, *args, **kwargs)

    def alltoall(self, *args: Any, **kwargs: Any) -> Any:
        return _base.alltoall(self, *args, **kwargs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        *,
        timeout: Any = None,
    ) -> Any:
        """Straight to the operator: here torch's class would call back under either name."""
        splits = list(output_split_sizes or ()), list(input_split_sizes or ())
        options = all_options(dist.AllToAllOptions, opts, timeout=timeout)
        limit = int(options.timeout.total_seconds() * 1000) if options.timeout else -1
        operator: Any = torch.ops.c10d.alltoall_base_
        group = self.boxed()
        return dist.Work.unbox(operator(output, input, group, *splits, options.asyncOp, limit))

    alltoall_base = all_to_all_single

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        return _base.barrier(self, *args, **kwargs)

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        _base.monitored_barrier(self, *args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        return _base.send(self, *args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        return _base.recv(self, *args, **kwargs)

    def recv_anysource(self, *args: Any, **kwargs: Any) -> Any:
        return _base.recv_anysource(self, *args, **kwargs)


def _seen_if_watched(plain: Any, visible: Any) -> Any:
    """The method that callers get: the short way, or the one through the dispatcher."""

    @functools.wraps(visible)
    def call(self: VisibleGroup, *args: Any, **kwargs: Any) -> Any:
        if function_modes() or dispatch_modes() or private.recording:
            return _look_closer(self, plain, visible, args, kwargs)
        return plain(self, *args, **kwargs)

    return call


def _look_closer(
    group: VisibleGroup, plain: Any, visible: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Modes that see calls of Python functions (`TorchFunctionMode`) see nothing of the inside
    of a backend in C++; nor may they of ours, least of all under `torch.compile`."""
    with private.no_function_modes():
        if not (private.dispatch_modes() or private.is_recorded()):
            return plain(group, *args, **kwargs)
        for value in (*args, *kwargs.values()):
            op = getattr(value, "reduceOp", value)
            if isinstance(op, dist.ReduceOp):
                _on_the_way.op = op  # the factor of PREMUL_SUM does not fit through
        _serve_operators()
        return visible(group, *args, **kwargs)


for _name, _visible in list(vars(VisibleGroup).items()):
    if hasattr(_base, _name) and not _name.startswith("__"):
        _plain = getattr(RankGroup, _name)
        setattr(VisibleGroup, _name, _seen_if_watched(_plain, _visible))


_on_the_way = threading.local()
_kept: deque[Any] = deque(maxlen=KEPT)
_lock = threading.Lock()
_library: torch.library.Library | None = None


def _serve_operators() -> None:
    """Register our kernels; on first use, because most programs are never watched."""
    global _library
    with _lock:
        if _library is None:
            _library = private.library_of("c10d")
            for name, carry_out in OPERATORS.items():
                private.serve_operator(_library, name, _server(carry_out))


def withdraw_operators() -> None:
    """Take our kernels out of the dispatcher again; nothing if there are none."""
    global _library
    with _lock:
        if _library is not None:
            private.forget_library(_library)
            _library = None
        _kept.clear()


Arguments = dict[str, Any]


def _server(carry_out: Callable[[Any, Arguments], Any]) -> Callable[[Arguments], Any]:
    def serve(given: Arguments) -> Any:
        group = _base.unbox(given["process_group"])
        if not isinstance(group, VisibleGroup) or private.is_fake(given):
            return NotImplemented
        work = carry_out(super(VisibleGroup, group), given) or _DONE
        _kept.append(work)
        return next(iter(given.values())), work

    return serve


class _Done(dist.Work):
    """What the dispatcher gets for a call that has been waited for already."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


_DONE = _Done()


def _options(kind: Any, given: Arguments) -> Any:
    options = kind()
    options.asyncOp = given.get("async_op", True)
    if given.get("timeout", -1) > 0:
        options.timeout = timedelta(milliseconds=given["timeout"])
    if "reduce_op" in given:
        code = given["reduce_op"].op()
        whole = code == PREMUL_SUM
        op = _on_the_way.op if whole else dist.ReduceOp(dist.ReduceOp.RedOpType(code))
        options.reduceOp = op
    if "root_rank" in given:
        options.rootRank = given["root_rank"]
    return options


OPERATORS: dict[str, Callable[[Any, Arguments], Any]] = {
    "allreduce_": lambda group, given: group.allreduce(
        given["tensors"], _options(dist.AllreduceOptions, given)
    ),
    "allreduce_coalesced_": lambda group, given: group.allreduce_coalesced(
        given["tensors"], _options(dist.AllreduceCoalescedOptions, given)
    ),
    "broadcast_": lambda group, given: group.broadcast(
        given["tensors"], _options(dist.BroadcastOptions, given)
    ),
    "reduce_": lambda group, given: group.reduce(
        given["tensors"], _options(dist.ReduceOptions, given)
    ),
    "allgather_": lambda group, given: group.allgather(
        given["output_tensors"],
        given["input_tensors"],
        _options(_names.AllgatherOptions, given),
    ),
    "allgather_coalesced_": lambda group, given: group.allgather_coalesced(
        given["output_lists"], given["input_list"], _options(_names.AllgatherOptions, given)
    ),
    "_allgather_base_": lambda group, given: group.all_gather_single(
        given["output_tensor"], given["input_tensor"], _options(_names.AllgatherOptions, given)
    ),
    "allgather_into_tensor_coalesced_": lambda group, given: group.all_gather_single_coalesced(
        given["outputs"], given["inputs"], _options(_names.AllgatherOptions, given)
    ),
    "gather_": lambda group, given: group.gather(
        given["output_tensors"], given["input_tensors"], _options(dist.GatherOptions, given)
    ),
    "scatter_": lambda group, given: group.scatter(
        given["output_tensors"], given["input_tensors"], _options(dist.ScatterOptions, given)
    ),
    "reduce_scatter_": lambda group, given: group.reduce_scatter(
        given["output_tensors"],
        given["input_tensors"],
        _options(dist.ReduceScatterOptions, given),
    ),
    "_reduce_scatter_base_": lambda group, given: group.reduce_scatter_single(
        given["output_tensor"],
        given["input_tensor"],
        _options(dist.ReduceScatterOptions, given),
    ),
    "reduce_scatter_tensor_coalesced_": (
        lambda group, given: group.reduce_scatter_single_coalesced(
            given["outputs"], given["inputs"], _options(dist.ReduceScatterOptions, given)
        )
    ),
    "alltoall_": lambda group, given: group.alltoall(
        given["output_tensors"], given["input_tensors"], _options(dist.AllToAllOptions, given)
    ),
    "alltoall_base_": lambda group, given: group.all_to_all_single(
        given["output"],
        given["input"],
        given["output_split_sizes"],
        given["input_split_sizes"],
        _options(dist.AllToAllOptions, given),
    ),
    "barrier": lambda group, given: group.barrier(_options(dist.BarrierOptions, given)),
    "monitored_barrier_": lambda group, given: group.monitored_barrier(
        timedelta(milliseconds=given["timeout"]), given["wait_all_ranks"]
    ),
    "send": lambda group, given: group.send(given["tensors"], given["dst"], given["tag"]),
    "recv_": lambda group, given: group.recv(given["tensors"], given["src"], given["tag"]),
    "recv_any_source_": lambda group, given: group.recv_anysource(
        given["tensors"], given["tag"]
    ),
}
"""How each operator of the dispatcher, with arguments by name, is carried out by a group."""
