"""The process group: torch's operations, under torch's names (those of 2.11 and of 2.13).

`init_process_group` and `new_group` make one per rank and group, in place of Gloo's or
NCCL's. Each method checks what one rank can see alone and describes the call: its buffers,
and a signature that is equal on all ranks if, and only if, the calls surely agree. Where
agreement is not that simple (uneven sizes) the call itself is the signature, which is equal
to nothing, and the full check decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from phalanx.backend import arguments, collectives
from phalanx.backend.endpoint import Endpoint, WorkOfAll
from phalanx.backend.reduction import NAMES, PREMUL_SUM
from phalanx.backend.work import NO_TIMEOUT, OpWork
from phalanx.core.meeting import Call

Lists = Sequence[Sequence[Tensor]]

_AllreduceOptions = dist.AllreduceOptions

_PLAIN = [(code, None) for code in range(PREMUL_SUM)]


class RankGroup(Endpoint):
    """One rank's end of a group, as programs and torch's own code use it."""

    # -- collectives ----------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> OpWork | None:
        if type(opts) is not _AllreduceOptions and not hasattr(opts, "reduceOp"):
            opts = _options(_AllreduceOptions(), reduceOp=opts)
        if type(tensors) is not list:
            tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        call = self._call("all_reduce")
        call.inputs = tensors
        call.op = _reduce_op(opts.reduceOp)
        first = tensors[0]
        call.signature = ("all_reduce", call.op[0], first.dtype, first.shape, first.is_cpu)
        return self._submit(call, collectives.all_reduce, opts, first)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> OpWork | None:
        opts = opts or dist.AllreduceCoalescedOptions()
        call = self._call("all_reduce_coalesced")
        call.inputs = tensors
        call.op = _reduce_op(opts.reduceOp)
        call.signature = (call.name, call.op[0], *_shapes(tensors))
        return self._submit(call, collectives.all_reduce, opts, tensors[0])

    def broadcast(self, tensors: Any, opts: Any = None) -> OpWork | None:
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        if opts is None or isinstance(opts, int):
            opts = _options(dist.BroadcastOptions(), rootRank=opts)
        call = self._call("broadcast")
        call.inputs = tensors
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        call.signature = (call.name, call.root, *_shapes(tensors))
        return self._submit(call, collectives.broadcast, opts, tensors[0])

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> OpWork | None:
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        if opts is None or isinstance(opts, int):
            opts = _options(dist.ReduceOptions(), rootRank=opts, reduceOp=op)
        call = self._call("reduce")
        call.inputs = tensors
        call.op = _reduce_op(opts.reduceOp)
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        call.signature = (call.name, call.root, call.op[0], *_shapes(tensors))
        return self._submit(call, collectives.reduce, opts, tensors[0])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> OpWork | None:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        call = self._call("all_gather")
        arguments.check_gather_lists(self, call.name, outputs, inputs)
        return self._gather_lists(call, outputs, inputs, opts or _gather_options())

    def allgather_coalesced(
        self, outputs: Lists, inputs: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        """torch passes one list per *rank* here: `outputs[rank][i]` is for `inputs[i]`."""
        call = self._call("all_gather_coalesced")
        per_input = [list(column) for column in zip(*outputs, strict=True)]
        arguments.check_gather_lists(self, call.name, per_input, inputs)
        return self._gather_lists(call, per_input, inputs, opts or _gather_options())

    def all_gather_single(
        self, output: Tensor, input: Tensor, opts: Any = None
    ) -> OpWork | None:
        call = self._call("all_gather_into_tensor")
        return self._gather_flat(call, [output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        call = self._call("all_gather_into_tensor_coalesced")
        return self._gather_flat(call, outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> OpWork | None:
        if isinstance(inputs, Tensor):
            outputs, inputs = ([outputs] if outputs else []), [inputs]
        if opts is None or isinstance(opts, int):
            opts = _options(dist.GatherOptions(), rootRank=opts)
        call = self._call("gather")
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        call.inputs = inputs
        call.outputs = outputs[0] if call.root == call.member and outputs else []
        if call.root == call.member:
            each = inputs[0]
            arguments.check_root_list(self, call.name, "gather_list", call.outputs, each=each)
        call.signature = (call.name, call.root, *_shapes(inputs))
        if call.outputs and any(t.shape != inputs[0].shape for t in call.outputs):
            call.signature = call
        return self._submit(call, collectives.gather, opts, inputs[0])

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> OpWork | None:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], ([inputs] if inputs else [])
        if opts is None or isinstance(opts, int):
            opts = _options(dist.ScatterOptions(), rootRank=opts)
        call = self._call("scatter")
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        call.outputs = outputs
        call.inputs = inputs[0] if call.root == call.member and inputs else []
        if call.root == call.member:
            each = outputs[0]
            arguments.check_root_list(self, call.name, "scatter_list", call.inputs, each=each)
        call.signature = (call.name, call.root, *_shapes(outputs))
        if call.inputs and any(t.shape != outputs[0].shape for t in call.inputs):
            call.signature = call
        return self._submit(call, collectives.scatter, opts, outputs[0])

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> OpWork | None:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        if opts is None or isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            opts = _options(dist.ReduceScatterOptions(), reduceOp=opts)
        call = self._call("reduce_scatter")
        arguments.check_scatter_lists(self, call.name, outputs, inputs)
        call.inputs, call.outputs = inputs, outputs
        call.op = _reduce_op(opts.reduceOp)
        call.signature = (call.name, call.op[0], *_shapes(outputs), *_shapes(inputs[0]))
        return self._submit(call, collectives.reduce_scatter, opts, outputs[0])

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, opts: Any = None
    ) -> OpWork | None:
        call = self._call("reduce_scatter_tensor")
        return self._reduce_flat(call, [output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        call = self._call("reduce_scatter_tensor_coalesced")
        return self._reduce_flat(call, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        call = self._call("all_to_all")
        arguments.check_list(self, call.name, "output_tensor_list", outputs)
        arguments.check_list(self, call.name, "input_tensor_list", inputs)
        call.inputs, call.outputs = inputs, outputs
        shape = inputs[0].shape
        even = all(t.shape == shape for t in (*inputs, *outputs))
        call.signature = (call.name, *_shapes(inputs)) if even else call
        return self._submit(call, collectives.all_to_all, opts, inputs[0])

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
    ) -> OpWork | None:
        call = self._call("all_to_all_single")
        outgoing, incoming = tuple(input_splits or ()), tuple(output_splits or ())
        arguments.check_splits(self, call.name, "input", input, outgoing)
        arguments.check_splits(self, call.name, "output", output, incoming)
        arguments.check_rows(call.name, output, input)
        call.inputs, call.outputs, call.facts = [input], [output], (outgoing, incoming)
        even = not outgoing and not incoming and input.shape == output.shape
        call.signature = (call.name, *_shapes([input])) if even else call
        return self._submit(call, collectives.all_to_all_single, opts, input)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: Any = None) -> OpWork | None:
        call = self._call("barrier")
        call.signature = ("barrier",)
        return self._submit(call, collectives.barrier, opts or dist.BarrierOptions(), None)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        call = self._call("monitored_barrier")
        call.signature = ("monitored_barrier",)
        work = self._submit(call, collectives.barrier, dist.BarrierOptions(), None)
        assert work is not None
        limit = timedelta(seconds=self._limit)
        # torch passes the group's timeout where the program named none
        work.wait(timeout if timeout is not None and timeout < limit else NO_TIMEOUT)

    # -- point to point -------------------------------------------------------------------

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> OpWork:
        call = self._call("send")
        call.peer, call.tag = arguments.check_peer(self, call.name, dst), tag
        call.inputs = tensors
        return self._exchange(call, tensors[0])

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> OpWork:
        call = self._call("recv")
        call.peer, call.tag = arguments.check_peer(self, call.name, src), tag
        call.outputs = tensors
        return self._exchange(call, tensors[0])

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> OpWork:
        call = self._call("recv")
        call.tag = tag
        call.outputs = tensors
        return self._exchange(call, tensors[0])

    # -- coalescing of whatever is called between start and end ---------------------------

    def _start_coalescing(self, of: torch.device | None = None) -> None:
        self._coalescing = []

    def _end_coalescing(self, of: torch.device | None = None) -> OpWork | None:
        works, self._coalescing = self._coalescing or [], None
        return WorkOfAll(works) if works else None

    # -- shared by the forms above --------------------------------------------------------

    def _gather_lists(
        self, call: Call, outputs: Lists, inputs: list[Tensor], opts: Any
    ) -> OpWork | None:
        call.inputs, call.outputs = inputs, outputs
        even = all(
            out.shape == given.shape
            for outs, given in zip(outputs, inputs, strict=True)
            for out in outs
        )
        call.signature = (call.name, *_shapes(inputs)) if even else call
        return self._submit(call, collectives.all_gather, opts, inputs[0])

    def _gather_flat(
        self, call: Call, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> OpWork | None:
        for output, given in zip(outputs, inputs, strict=True):
            arguments.check_flat(self, call.name, whole=output, part=given)
        call.inputs, call.outputs = inputs, outputs
        call.signature = (call.name, *_shapes(inputs))
        return self._submit(call, collectives.all_gather_into_tensor, opts, inputs[0])

    def _reduce_flat(
        self, call: Call, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> OpWork | None:
        opts = opts or dist.ReduceScatterOptions()
        for output, given in zip(outputs, inputs, strict=True):
            arguments.check_flat(self, call.name, whole=given, part=output)
        call.inputs, call.outputs = inputs, outputs
        call.op = _reduce_op(opts.reduceOp)
        call.signature = (call.name, call.op[0], *_shapes(inputs))
        return self._submit(call, collectives.reduce_scatter_tensor, opts, inputs[0])


def _gather_options() -> Any:
    names: Any = distributed_c10d  # torch's stubs leave this class out
    return names.AllgatherOptions()


def _options(options: Any, **given: Any) -> Any:
    for name, value in given.items():
        if value is not None:
            setattr(options, name, value)
    return options


def _reduce_op(op: Any) -> tuple[int, Any]:
    """(code, factor): the factor only for PREMUL_SUM."""
    kind: Any = getattr(op, "op", op)
    code = int(kind)
    if code < PREMUL_SUM:
        return _PLAIN[code]
    if code > PREMUL_SUM:
        raise ValueError(f"reduce operation {kind} is none of {', '.join(NAMES)}")
    return code, op.__getstate__()[1]


def _shapes(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((t.dtype, t.shape, t.is_cpu) for t in tensors)
