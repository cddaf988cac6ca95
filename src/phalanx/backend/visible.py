"""Operations that pass through torch's dispatcher, for those who watch there.

A group written in Python is called directly: `CommDebugMode`, dispatch modes of users and the
profiler would see nothing. So while the calling thread is watched, each operation of
`VisibleGroup` first calls the method of the same name of torch's own class, which goes through
the dispatcher; our kernel of the c10d operator then does the work. Unwatched calls take the
short way. `install` makes groups of this class.
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

from phalanx.backend import private
from phalanx.backend.group import RankGroup
from phalanx.backend.overloads import options as all_options
from phalanx.backend.reduction import PREMUL_SUM

_base: Any = dist.ProcessGroup
_names: Any = distributed_c10d  # torch's stubs leave some option classes out

KEPT = 1024
"""How many works stay referenced for C++ callers: to them a boxed work is no Python object."""


class VisibleGroup(RankGroup):
    """`RankGroup` as the dispatcher sees it. torch's class knows by the *name* of the calling
    function that it is called by its own override, hence the spelled-out methods."""

    def allreduce(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base.allreduce(self, *args, **kwargs)
        return super().allreduce(*args, **kwargs)

    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base.allreduce_coalesced(self, *args, **kwargs)
        return super().allreduce_coalesced(*args, **kwargs)

    def broadcast(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.broadcast(self, *args, **kwargs)
        return super().broadcast(*args, **kwargs)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base.reduce(self, *args, **kwargs)
        return super().reduce(*args, **kwargs)

    def allgather(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.allgather(self, *args, **kwargs)
        return super().allgather(*args, **kwargs)

    def allgather_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.allgather_coalesced(self, *args, **kwargs)
        return super().allgather_coalesced(*args, **kwargs)

    def all_gather_single(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.all_gather_single(self, *args, **kwargs)
        return super().all_gather_single(*args, **kwargs)

    def _allgather_base(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base._allgather_base(self, *args, **kwargs)
        return super().all_gather_single(*args, **kwargs)

    def all_gather_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.all_gather_single_coalesced(self, *args, **kwargs)
        return super().all_gather_single_coalesced(*args, **kwargs)

    def allgather_into_tensor_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.allgather_into_tensor_coalesced(self, *args, **kwargs)
        return super().all_gather_single_coalesced(*args, **kwargs)

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.gather(self, *args, **kwargs)
        return super().gather(*args, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.scatter(self, *args, **kwargs)
        return super().scatter(*args, **kwargs)

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base.reduce_scatter(self, *args, **kwargs)
        return super().reduce_scatter(*args, **kwargs)

    def reduce_scatter_single(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base.reduce_scatter_single(self, *args, **kwargs)
        return super().reduce_scatter_single(*args, **kwargs)

    def _reduce_scatter_base(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base._reduce_scatter_base(self, *args, **kwargs)
        return super().reduce_scatter_single(*args, **kwargs)

    def reduce_scatter_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base.reduce_scatter_single_coalesced(self, *args, **kwargs)
        return super().reduce_scatter_single_coalesced(*args, **kwargs)

    def reduce_scatter_tensor_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched(*args, **kwargs):
            return _base.reduce_scatter_tensor_coalesced(self, *args, **kwargs)
        return super().reduce_scatter_single_coalesced(*args, **kwargs)

    def alltoall(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.alltoall(self, *args, **kwargs)
        return super().alltoall(*args, **kwargs)

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
        if not self._is_watched():
            return super().all_to_all_single(output, input, *splits, options)
        limit = int(options.timeout.total_seconds() * 1000) if options.timeout else -1
        operator: Any = torch.ops.c10d.alltoall_base_
        group = self.boxed()
        return dist.Work.unbox(operator(output, input, group, *splits, options.asyncOp, limit))

    alltoall_base = all_to_all_single

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.barrier(self, *args, **kwargs)
        return super().barrier(*args, **kwargs)

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        if self._is_watched():
            _base.monitored_barrier(self, *args, **kwargs)
        else:
            super().monitored_barrier(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.send(self, *args, **kwargs)
        return super().send(*args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.recv(self, *args, **kwargs)
        return super().recv(*args, **kwargs)

    def recv_anysource(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_watched():
            return _base.recv_anysource(self, *args, **kwargs)
        return super().recv_anysource(*args, **kwargs)

    def _is_watched(self, *args: Any, **kwargs: Any) -> bool:
        """`args` where a reduce op is among them: its factor does not fit through."""
        if not private.is_watched():
            return False
        for value in (*args, *kwargs.values()):
            op = getattr(value, "reduceOp", value)
            if isinstance(op, dist.ReduceOp):
                _on_the_way.op = op
        _serve_operators()
        return True


def _out_of_sight(method: Any) -> Any:
    """Modes that see calls of Python functions (`TorchFunctionMode`) see nothing of the inside
    of a backend in C++; nor may they of ours, least of all under `torch.compile`."""

    @functools.wraps(method)
    def call(self: VisibleGroup, *args: Any, **kwargs: Any) -> Any:
        if not private.function_modes():
            return method(self, *args, **kwargs)
        with private.no_function_modes():
            return method(self, *args, **kwargs)

    return call


for _name, _method in list(vars(VisibleGroup).items()):
    if hasattr(_base, _name) and not _name.startswith("__"):
        setattr(VisibleGroup, _name, _out_of_sight(_method))


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
        if not isinstance(group, VisibleGroup):
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
