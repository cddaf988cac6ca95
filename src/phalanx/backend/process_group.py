"""The process group: torch's operations, under torch's names (those of 2.11 and of 2.13).

`init_process_group` and `new_group` make one per rank and group, in place of Gloo's or
NCCL's. Each method checks what one rank can see alone, by the rules of the backend asked for,
and describes the call: its buffers, and a signature that is equal on all ranks if, and only
if, the calls surely agree. Where agreement is not that simple (uneven sizes) the call itself
is the signature, which is equal to nothing, and the full check decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from phalanx.backend import arguments, overlaps
from phalanx.backend.collectives import data_movement
from phalanx.backend.collectives import monitored_barrier as monitored
from phalanx.backend.collectives.call_signature import (
    PLAIN_OPS,
    alike_or_not,
    have_one_shape,
    reduce_op,
    signature_of,
)
from phalanx.backend.collectives.reduction import PREMUL_SUM
from phalanx.backend.endpoint import Endpoint
from phalanx.backend.overloads import as_list, as_lists, options
from phalanx.backend.profiles.admission import Admission, is_plain
from phalanx.backend.profiles.profile_rules import INPUT, OUTPUT
from phalanx.backend.profiles.second_opinion import second_opinion
from phalanx.backend.work.work import OpWork, WorkOfAll
from phalanx.matching.slots import Call

Lists = Sequence[Sequence[Tensor]]

_names: Any = distributed_c10d  # torch's stubs leave some option classes out
_AllreduceOptions = dist.AllreduceOptions
_AllgatherOptions = _names.AllgatherOptions
_ReduceScatterOptions = dist.ReduceScatterOptions

_STRIDED = torch.strided
_UNEVEN: dict[str, Any] = {"uneven": True}
_STACKING: dict[str, Any] = {"stacking": True}
_MOST_KNOWN = 1024


class RankGroup(Endpoint):
    """One rank's end of a group, as programs and torch's own code use it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        second = second_opinion(self._session) if self._session.profile else None
        self._admission = Admission(self._backend_name, self._config, second)
        self._passed = self._admission.passed
        self._check = self._admission.check
        self._check_outputs = self._admission.check_outputs
        self._sees_all = second is not None
        """Whether a profile takes notes of every call."""
        self._flat: dict[Any, Any] = {}
        """Signatures of calls with one input and one output that have passed all checks, by
        what `_facts_of` says."""

    def make_call(self, name: str) -> Call:
        """For what stands in the place of `_call`: the usual one after all."""
        return Endpoint._call(self, name)

    def _config(self) -> str | None:
        """torch's description of the backends, by device; not before the group is made."""
        found = self._context.torch_state.pg_backend_config.get(self)
        if found is not None:
            self._note_backend(found)
        return found

    # -- collectives ----------------------------------------------------------------------

    def allreduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        op: Any = None,
    ) -> OpWork | None:
        if type(opts) is not _AllreduceOptions:
            opts = options(_AllreduceOptions, opts, timeout=timeout, op=op)
        if type(tensors) is not list:
            tensors = as_list(tensors, tensor)
        call = self._call("all_reduce")
        call.inputs = tensors
        given = opts.reduceOp
        code = int(getattr(given, "op", given))
        call.op = PLAIN_OPS[code] if code < PREMUL_SUM else reduce_op(given)
        if len(tensors) != 1:
            return self._reduce_several(call, opts)
        first = tensors[0]
        dtype, on_cpu = first.dtype, first.is_cpu
        key = ("all_reduce", INPUT, code, dtype, on_cpu)
        if key in self._passed and first.layout is _STRIDED and first.is_contiguous():
            call.signature = ("all_reduce", code, (dtype, first.shape, on_cpu))
            call.plain = True
        else:
            self._check("all_reduce", first, code)
            call.signature = signature_of(call)
        return self._submit(call, data_movement.all_reduce, opts, first)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> OpWork | None:
        opts = options(dist.AllreduceCoalescedOptions, opts)
        call = self._call("all_reduce_coalesced")
        arguments.check_one_dtype(call.name, tensors)
        call.inputs = tensors
        call.op = reduce_op(opts.reduceOp)
        for tensor in tensors:
            self._check(call.name, tensor, call.op[0])
        call.signature = signature_of(call)
        return self._submit(call, data_movement.all_reduce_coalesced, opts, tensors[0])

    def broadcast(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> OpWork | None:
        opts = options(dist.BroadcastOptions, opts, timeout=timeout, root=root)
        call = self._call("broadcast")
        call.inputs = as_list(tensors, tensor)
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        arguments.check_same_shapes(call.name, call.inputs)
        for given in call.inputs:
            self._check(call.name, given)
        call.signature = signature_of(call)
        move_data = partial(data_movement.broadcast, which=opts.rootTensor)
        return self._submit(call, move_data, opts, call.inputs[0])

    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> OpWork | None:
        opts = options(dist.ReduceOptions, opts, timeout=timeout, root=root, op=op)
        call = self._call("reduce")
        call.inputs = arguments.check_single(call.name, as_list(tensors, tensor))
        call.op = reduce_op(opts.reduceOp)
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        self._check(call.name, call.inputs[0], call.op[0])
        call.signature = signature_of(call)
        return self._submit(call, data_movement.reduce, opts, call.inputs[0])

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        input_tensor: Any = None,
        timeout: Any = None,
    ) -> OpWork | None:
        opts = options(_AllgatherOptions, opts, timeout=timeout)
        inputs = as_list(input_tensors, input_tensor)
        single = not isinstance(input_tensors, (list, tuple))
        outputs = [list(output_tensors)] if single else list(output_tensors)
        call = self._call("all_gather")
        arguments.check_gather_lists(self, call.name, outputs, inputs)
        call.inputs, call.outputs = inputs, outputs
        even = all(have_one_shape([*inputs, *outs]) for outs in outputs)
        self._check_lists(call, outputs, inputs, even=even)
        if len(inputs) == 1 and overlaps.is_overwritten(inputs[0], outputs[0], call.member):
            call.inputs = [inputs[0].clone()]
        call.signature = signature_of(call, even=even)
        return self._submit(call, data_movement.all_gather, opts, inputs[0])

    def allgather_coalesced(
        self, output_lists: Lists, input_list: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        """torch passes one list per *rank* here: `output_lists[rank][i]` is for input i."""
        opts = options(_AllgatherOptions, opts)
        call = self._call("all_gather_coalesced")
        arguments.check_coalesced_lists(self, call.name, output_lists, input_list)
        call.inputs = input_list
        call.outputs = [list(column) for column in zip(*output_lists, strict=True)]
        self._check_lists(call, call.outputs, input_list, even=True)
        call.signature = signature_of(call)
        return self._submit(call, data_movement.all_gather_each, opts, input_list[0])

    def all_gather_single(
        self, output: Tensor, input: Tensor, opts: Any = None
    ) -> OpWork | None:
        call = self._call("all_gather_into_tensor")
        facts = self._facts_of(call, output, input)
        signature = self._flat.get(facts)
        if signature is None:
            return self._gather_flat(call, [output], [input], opts, facts)
        call.inputs, call.outputs = [input], [output]
        call.signature, call.plain = signature, True
        if type(opts) is not _AllgatherOptions:
            opts = options(_AllgatherOptions, opts)
        return self._submit(call, data_movement.all_gather_into_tensor, opts, input)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        call = self._call("all_gather_into_tensor_coalesced")
        return self._gather_flat(call, outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        input_tensor: Any = None,
        root: Any = None,
    ) -> OpWork | None:
        opts = options(dist.GatherOptions, opts, timeout=timeout, root=root)
        single = not isinstance(input_tensors, (list, tuple))
        lists = as_lists(output_tensors, single)
        call = self._call("gather")
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        call.inputs = arguments.check_single(call.name, as_list(input_tensors, input_tensor))
        call.outputs = self._check_root_lists(call, call.inputs[0], lists)
        given = call.inputs[0]
        uneven = any(t.shape != given.shape for t in call.outputs)
        self._check(call.name, given, **(_UNEVEN if uneven else {}))
        self._check_outputs(call.name, call.outputs)
        overlaps.check_apart(call.name, call.outputs)
        if overlaps.is_overwritten(given, call.outputs, call.member):
            call.inputs = [given.clone()]
        call.signature = signature_of(call)
        return self._submit(call, data_movement.gather, opts, given)

    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        root: Any = None,
    ) -> OpWork | None:
        opts = options(dist.ScatterOptions, opts, timeout=timeout, root=root)
        single = not isinstance(output_tensors, (list, tuple))
        lists = as_lists(input_tensors, single)
        call = self._call("scatter")
        call.root = arguments.check_root(self, call.name, opts.rootRank)
        call.outputs = arguments.check_single(call.name, as_list(output_tensors, output_tensor))
        call.inputs = self._check_root_lists(call, call.outputs[0], lists)
        output = call.outputs[0]
        uneven = any(t.shape != output.shape for t in call.inputs)
        self._check(call.name, output, None, OUTPUT, **(_UNEVEN if uneven else {}))
        for given in call.inputs:
            self._check(call.name, given, **alike_or_not(given, output))
        overlaps.check_other_parts(call.name, output, call.inputs, call.member)
        call.signature = signature_of(call)
        return self._submit(call, data_movement.scatter, opts, output)

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output: Any = None,
        input: Any = None,
        op: Any = None,
    ) -> OpWork | None:
        opts = options(_ReduceScatterOptions, opts, timeout=timeout, op=op)
        outputs = as_list(output_tensors, output)
        single = not isinstance(output_tensors, (list, tuple))
        inputs = as_lists(input_tensors if input is None else input, single)
        call = self._call("reduce_scatter")
        arguments.check_single(call.name, outputs)
        given = arguments.check_scatter_list(self, call.name, outputs[0], inputs)
        call.inputs, call.outputs = inputs, outputs
        call.op = reduce_op(opts.reduceOp)
        whole = outputs[0]
        more = {} if given[call.member].shape == whole.shape else _UNEVEN
        for tensor in given:
            alike = alike_or_not(tensor, whole)
            self._check(call.name, tensor, call.op[0], **more, **alike)
            if alike and not is_plain(whole):
                self._check(call.name, whole, call.op[0], OUTPUT, **alike)
        self._check_outputs(call.name, outputs, call.op[0])
        call.signature = signature_of(call)
        return self._submit(call, data_movement.reduce_scatter, opts, outputs[0])

    def reduce_scatter_single(
        self,
        outputTensor: Tensor,  # noqa: N803, torch's name
        inputTensor: Tensor,  # noqa: N803
        opts: Any = None,
    ) -> OpWork | None:
        call = self._call("reduce_scatter_tensor")
        if type(opts) is not _ReduceScatterOptions:
            opts = options(_ReduceScatterOptions, opts)
        call.op = reduce_op(opts.reduceOp)
        facts = self._facts_of(call, outputTensor, inputTensor)
        signature = self._flat.get(facts)
        if signature is None:
            return self._reduce_flat(call, [outputTensor], [inputTensor], opts, facts)
        call.inputs, call.outputs = [inputTensor], [outputTensor]
        call.signature, call.plain = signature, True
        return self._submit(call, data_movement.reduce_scatter_tensor, opts, inputTensor)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        call = self._call("reduce_scatter_tensor_coalesced")
        return self._reduce_flat(call, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = None
    ) -> OpWork | None:
        opts = options(dist.AllToAllOptions, opts)
        call = self._call("all_to_all")
        arguments.check_list(self, call.name, "output_tensor_list", output_tensors)
        arguments.check_list(self, call.name, "input_tensor_list", input_tensors)
        call.inputs, call.outputs = input_tensors, output_tensors
        even = have_one_shape([*input_tensors, *output_tensors])
        self._check_lists(call, [output_tensors], input_tensors, even=even)
        call.signature = signature_of(call, even=even)
        return self._submit(call, data_movement.all_to_all, opts, input_tensors[0])

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        *,
        timeout: Any = None,
    ) -> OpWork | None:
        call = self._call("all_to_all_single")
        opts = options(dist.AllToAllOptions, opts, timeout=timeout)
        outgoing = arguments.as_splits(call.name, "input", input_split_sizes)
        incoming = arguments.as_splits(call.name, "output", output_split_sizes)
        facts = None if outgoing or incoming else self._facts_of(call, output, input)
        signature = self._flat.get(facts)
        if signature is not None:
            call.inputs, call.outputs, call.facts = [input], [output], (outgoing, incoming)
            call.signature, call.plain = signature, True
            return self._submit(call, data_movement.all_to_all_single, opts, input)
        alike = alike_or_not(input, output)
        self._check(call.name, input, **alike)
        self._check(call.name, output, None, OUTPUT, **alike)
        if outgoing or incoming:
            arguments.check_splits(self, call.name, "input", input, outgoing)
            arguments.check_splits(self, call.name, "output", output, incoming)
            arguments.check_rows(call.name, output, input)
        else:
            whole_rows = not self._admission.is_gloo(input)
            arguments.check_even(self, call.name, output, input, whole_rows=whole_rows)
        overlaps.check_disjoint(call.name, input, output)
        call.inputs, call.outputs, call.facts = [input], [output], (outgoing, incoming)
        even = not outgoing and not incoming and input.shape == output.shape
        call.signature = signature_of(call, even=even)
        if even and facts is not None:
            self._remember(facts, call.signature)
        return self._submit(call, data_movement.all_to_all_single, opts, input)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: Any = None) -> OpWork | None:
        opts = options(dist.BarrierOptions, opts, timeout=timeout)
        call = self._call("barrier")
        call.signature = ("barrier",)
        if opts.device_ids:
            call.device = opts.device_ids[0]
        return self._submit(call, data_movement.barrier, opts, None)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        monitored.monitored_barrier(self, timeout, wait_all_ranks)

    # -- point to point -------------------------------------------------------------------

    def send(self, tensors: list[Tensor], dstRank: int, tag: int = 0) -> OpWork:  # noqa: N803
        call = self._call("send")
        call.inputs = arguments.check_single(call.name, tensors)
        return self._message(call, tensors[0], dstRank, tag)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int = 0) -> OpWork:  # noqa: N803
        call = self._call("recv")
        call.outputs = arguments.check_single(call.name, tensors)
        return self._message(call, tensors[0], srcRank, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> OpWork:
        call = self._call("recv")
        call.outputs = arguments.check_single(call.name, tensors)
        return self._message(call, tensors[0], None, tag)

    # -- coalescing of whatever is called between start and end ---------------------------

    def _start_coalescing(self, of: torch.device | None = None) -> None:
        self._coalescing = []
        self._batch = next(self._session.batch_numbers)

    def _end_coalescing(self, of: torch.device | None = None) -> OpWork | None:
        works, self._coalescing, self._batch = self._coalescing or [], None, None
        return WorkOfAll(works) if works else None

    # -- shared by the forms above --------------------------------------------------------

    def _reduce_several(self, call: Call, opts: Any) -> OpWork | None:
        """Several tensors of one rank count like those of several ranks: Gloo's meaning."""
        tensors = call.inputs
        arguments.check_same_shapes(call.name, tensors)
        if not self._admission.is_gloo(tensors[0]):
            arguments.check_single(call.name, tensors)
        for tensor in tensors:
            self._check(call.name, tensor, call.op[0])
        call.signature = signature_of(call)
        return self._submit(call, data_movement.all_reduce, opts, tensors[0])

    def _check_lists(
        self, call: Call, outputs: Lists, inputs: Sequence[Tensor], *, even: bool
    ) -> None:
        more = {} if even else _UNEVEN
        for given in inputs:
            self._check(call.name, given, **more)
        for tensors in outputs:
            self._check_outputs(call.name, tensors)
            overlaps.check_apart(call.name, tensors)

    def _check_root_lists(self, call: Call, each: Tensor, lists: Any) -> Sequence[Tensor]:
        return arguments.check_root_lists(
            self,
            call.name,
            f"{call.name}_list",
            lists,
            each=each,
            root=call.root,
            is_root=call.root == call.member,
        )

    def _gather_flat(
        self,
        call: Call,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: Any,
        facts: Any = None,
    ) -> OpWork | None:
        opts = options(_AllgatherOptions, opts)
        arguments.check_pairs(call.name, outputs, inputs)
        self._check_outputs(call.name, outputs)
        for output, given in zip(outputs, inputs, strict=True):
            self._check_flat(call.name, None, given, whole=output, part=given)
            overlaps.check_own_part(call.name, given, output, call.member)
        call.inputs, call.outputs = inputs, outputs
        call.signature = signature_of(call)
        if facts is not None:
            self._remember(facts, call.signature)
        return self._submit(call, data_movement.all_gather_into_tensor, opts, inputs[0])

    def _reduce_flat(
        self,
        call: Call,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: Any,
        facts: Any = None,
    ) -> OpWork | None:
        opts = options(_ReduceScatterOptions, opts)
        arguments.check_pairs(call.name, outputs, inputs)
        call.op = reduce_op(opts.reduceOp)
        for output, given in zip(outputs, inputs, strict=True):
            self._check_flat(call.name, call.op[0], given, whole=given, part=output)
            self._check(call.name, output, call.op[0], OUTPUT)
            overlaps.check_own_part(call.name, output, given, call.member)
        call.inputs, call.outputs = inputs, outputs
        call.signature = signature_of(call)
        if facts is not None:
            self._remember(facts, call.signature)
        return self._submit(call, data_movement.reduce_scatter_tensor, opts, inputs[0])

    def _facts_of(self, call: Call, output: Tensor, given: Tensor) -> Any:
        """What the checks of a call with these two tensors depend on, besides the group: where
        it passed once, it passes again. None if they depend on more, because a tensor does not
        lie in memory as usual, or the two share it."""
        if (
            self._sees_all
            or type(output) is not Tensor
            or type(given) is not Tensor
            or output.layout is not _STRIDED
            or given.layout is not _STRIDED
            or output.requires_grad
            or given.requires_grad
            or not output.is_contiguous()
            or not given.is_contiguous()
        ):
            return None
        try:
            low, start = output.data_ptr(), given.data_ptr()
        except RuntimeError:  # it stands for others, as in functorch
            return None
        if low < start + given.nbytes and start < low + output.nbytes:
            return None
        op = call.op
        if op is not None:
            if op[1] is not None:
                return None
            op = op[0]
        device = (output.is_cpu, given.is_cpu)
        return call.name, op, output.dtype, output.shape, given.dtype, given.shape, device

    def _remember(self, facts: Any, signature: Any) -> None:
        if len(self._flat) >= _MOST_KNOWN:
            self._flat.clear()
        self._flat[facts] = signature

    def _check_flat(
        self, name: str, code: int | None, given: Tensor, *, whole: Tensor, part: Tensor
    ) -> None:
        """`whole` is to be cut into one `part` for each rank."""
        joined = bool(part.dim()) and whole.shape == (
            part.shape[0] * self._count,
            *part.shape[1:],
        )
        arguments.check_flat(self, name, whole=whole, part=part)
        self._check(name, given, code, **({} if joined else _STACKING))

    def _message(self, call: Call, tensor: Tensor, peer: int | None, tag: int) -> OpWork:
        if peer is not None:
            call.peer = arguments.check_peer(self, call.name, peer)
            self._check(call.name, tensor)
        else:
            self._check(call.name, tensor, any_source=True)
        call.tag = arguments.check_tag(call.name, tag)
        if self._admission.ignores_tags(tensor):
            call.tag = 0
        return self._exchange(call, tensor)
