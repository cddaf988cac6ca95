"""From the arguments of torch's c10d operators to the forms that a rank announces.

Used by `watcher.py`, which sees the calls of real process groups where they enter torch's
dispatcher. The names, and what counts as input and output, are those of `process_group.py`, so
that reports read the same on threads and on processes. Must never wait or announce.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phalanx.backend import arguments, overlaps
from phalanx.backend.collectives.call_signature import order_of
from phalanx.backend.collectives.reduction import NAMES
from phalanx.backend.evidence.call_description import specs_of
from phalanx.backend.profiles.admission import Admission
from phalanx.callsite import resolve
from phalanx.engines.remote.call_place import CallPlace
from phalanx.matching.announcement import Form

Arguments = dict[str, Any]


class Parts(NamedTuple):
    """One call, taken apart. Lists may be nested; `code` is the reduce op's."""

    name: str
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()
    root: int | None = None
    code: int | None = None
    peer: int | None = None
    tag: int | None = None
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    batched: bool = False
    begins_batch: bool = False

    def tensors(self) -> list[Tensor]:
        return [*_flat(self.inputs), *_flat(self.outputs)]

    def device(self, given: Arguments) -> torch.device:
        """Of its tensors, or of the one that barriers bring along."""
        tensors: list[Any] = self.tensors() or [given.get("tensor")]
        device: torch.device | None = getattr(tensors[0], "device", None)
        return device or torch.device("cpu")

    def key(self) -> Hashable:
        """Equal for calls that have the same form."""
        inputs = tuple([_key_of(tensor) for tensor in _flat(self.inputs)])
        outputs = tuple([_key_of(tensor) for tensor in _flat(self.outputs)])
        batch = (self.batched, self.begins_batch)
        rest = (self.root, self.code, self.peer, self.tag, self.splits, batch)
        return self.name, inputs, outputs, rest

    def form(self, group: int, at: CallPlace) -> Form:
        return Form(
            name=self.name,
            group=group,
            root=self.root,
            peer=self.peer,
            tag=self.tag,
            reduce_op=None if self.code is None else NAMES[self.code],
            inputs=specs_of(self.inputs),
            outputs=specs_of(self.outputs),
            input_splits=self.splits[0],
            output_splits=self.splits[1],
            site=resolve(at.mark),
            batched=self.batched,
            begins_batch=self.begins_batch,
            handling=at.handling,
            stack=at.stack(),
        )


def making_form(
    group: int, made: tuple[tuple[int, ...], str], at: CallPlace, *, holds: bool
) -> Form:
    """That of a `new_group`."""
    return Form(
        name="new_group",
        group=group,
        made=made,
        holds=holds,
        site=resolve(at.mark),
        handling=at.handling,
        stack=at.stack(),
    )


def place_of(tensor: Tensor) -> int | None:
    """Where its data is; sparse tensors have it in several places."""
    if tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage().data_ptr()


def _flat(tensors: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for item in tensors:
        found.append(item) if isinstance(item, Tensor) else found.extend(_flat(item))
    return found


def _key_of(tensor: Tensor) -> Hashable:
    return tensor.dtype, tensor.shape, tensor.device, order_of(tensor)


def _code(given: Arguments) -> int:
    return int(given["reduce_op"].op())


def _first(lists: Sequence[Any]) -> Sequence[Any]:
    """What only the root gives."""
    return lists[0] if lists else ()


READERS: dict[str, Callable[[Arguments], Parts]] = {
    "allreduce_": lambda given: Parts("all_reduce", given["tensors"], code=_code(given)),
    "allreduce_coalesced_": lambda given: Parts(
        "all_reduce_coalesced", given["tensors"], code=_code(given)
    ),
    "broadcast_": lambda given: Parts(
        "broadcast", given["tensors"], root=int(given["root_rank"])
    ),
    "reduce_": lambda given: Parts(
        "reduce", given["tensors"], root=int(given["root_rank"]), code=_code(given)
    ),
    "allgather_": lambda given: Parts(
        "all_gather", given["input_tensors"], given["output_tensors"]
    ),
    "allgather_coalesced_": lambda given: Parts(
        "all_gather_coalesced",
        given["input_list"],
        list(zip(*given["output_lists"], strict=False)),
    ),
    "_allgather_base_": lambda given: Parts(
        "all_gather_into_tensor", [given["input_tensor"]], [given["output_tensor"]]
    ),
    "allgather_into_tensor_coalesced_": lambda given: Parts(
        "all_gather_into_tensor_coalesced", given["inputs"], given["outputs"]
    ),
    "gather_": lambda given: Parts(
        "gather",
        given["input_tensors"],
        _first(given["output_tensors"]),
        root=int(given["root_rank"]),
    ),
    "scatter_": lambda given: Parts(
        "scatter",
        _first(given["input_tensors"]),
        given["output_tensors"],
        root=int(given["root_rank"]),
    ),
    "reduce_scatter_": lambda given: Parts(
        "reduce_scatter", given["input_tensors"], given["output_tensors"], code=_code(given)
    ),
    "_reduce_scatter_base_": lambda given: Parts(
        "reduce_scatter_tensor",
        [given["input_tensor"]],
        [given["output_tensor"]],
        code=_code(given),
    ),
    "reduce_scatter_tensor_coalesced_": lambda given: Parts(
        "reduce_scatter_tensor_coalesced",
        given["inputs"],
        given["outputs"],
        code=_code(given),
    ),
    "alltoall_": lambda given: Parts(
        "all_to_all", given["input_tensors"], given["output_tensors"]
    ),
    "alltoall_base_": lambda given: Parts(
        "all_to_all_single",
        [given["input"]],
        [given["output"]],
        splits=(tuple(given["input_split_sizes"]), tuple(given["output_split_sizes"])),
    ),
    "barrier": lambda given: Parts("barrier"),
    "monitored_barrier_": lambda given: Parts("monitored_barrier"),
    "send": lambda given: Parts(
        "send", given["tensors"], peer=int(given["dst"]), tag=int(given["tag"])
    ),
    "recv_": lambda given: Parts(
        "recv", (), given["tensors"], peer=int(given["src"]), tag=int(given["tag"])
    ),
    "recv_any_source_": lambda given: Parts(
        "recv", (), given["tensors"], tag=int(given["tag"])
    ),
}
"""How each operator is taken apart."""


def load_operators() -> None:
    """Have torch make its objects for the operators now, which takes some milliseconds."""
    for name in READERS:
        getattr(torch.ops.c10d, name).default  # noqa: B018, it is made when it is looked up


def check_places(parts: Parts, member: int) -> None:
    """Raise if its tensors lie in each other's way, which Gloo does not see: it gives wrong
    data. By address, so for every call that has several."""
    outputs = _flat(parts.outputs)
    if len(outputs) > 1:
        overlaps.check_apart(parts.name, outputs)
    elif parts.name == "all_to_all_single":
        overlaps.check_disjoint(parts.name, parts.inputs[0], outputs[0])
    elif parts.name == "all_gather_into_tensor":
        overlaps.check_own_part(parts.name, parts.inputs[0], outputs[0], member)
    elif parts.name == "reduce_scatter_tensor":
        overlaps.check_own_part(parts.name, outputs[0], parts.inputs[0], member)
    elif parts.name == "scatter" and parts.inputs:
        overlaps.check_other_parts(parts.name, outputs[0], _flat(parts.inputs), member)


class Doubt(NamedTuple):
    """Why the backend may refuse this call at once, for what one rank can see alone. Such a
    call is the backend's to judge, before it is announced: others need not have made it.
    `certain`: no backend can carry it out, though Gloo may try to."""

    error: Exception
    certain: bool


def find_doubt(
    group: Any, admission: Admission, parts: Parts, given: Arguments
) -> Doubt | None:
    certain = True
    try:
        _check_ranks(group, parts)
        certain = parts.name == "all_to_all_single"
        _check(group, parts, given)
        certain = False
        for tensor in _flat(parts.inputs or parts.outputs):
            admission.check(parts.name, tensor, parts.code)
    except Exception as error:
        return Doubt(error.with_traceback(None), certain)
    return None


def _check_ranks(group: Any, parts: Parts) -> None:
    """Gloo may look beyond the end of its table of connections."""
    if parts.root is not None:
        arguments.check_root(group, parts.name, parts.root)
    if parts.peer is not None:
        arguments.check_peer(group, parts.name, parts.peer)


def _check(group: Any, parts: Parts, given: Arguments) -> None:
    name = parts.name
    if parts.tag is not None:
        arguments.check_tag(name, parts.tag)
    if name in _SHAPES:
        _SHAPES[name](group, parts, given)


def _check_pairs(group: Any, parts: Parts, given: Arguments) -> None:
    arguments.check_pairs(parts.name, parts.outputs, parts.inputs)
    gathers = parts.name.startswith("all_gather")
    for output, source in zip(parts.outputs, parts.inputs, strict=True):
        whole, part = (output, source) if gathers else (source, output)
        arguments.check_flat(group, parts.name, whole=whole, part=part)


def _check_root_lists(group: Any, parts: Parts, given: Arguments) -> None:
    gathers = parts.name == "gather"
    own = list(parts.inputs if gathers else parts.outputs)
    each = arguments.check_single(parts.name, own)[0]
    is_root = parts.root == group.rank()
    lists = given["output_tensors" if gathers else "input_tensors"]
    what = f"{parts.name}_list"
    arguments.check_root_lists(
        group, parts.name, what, lists, each=each, root=parts.root, is_root=is_root
    )


def _check_splits(group: Any, parts: Parts, given: Arguments) -> None:
    (source,), (output,), splits = parts.inputs, parts.outputs, parts.splits
    if splits[0] or splits[1]:
        arguments.check_splits(group, parts.name, "input", source, splits[0])
        arguments.check_splits(group, parts.name, "output", output, splits[1])
        arguments.check_rows(parts.name, output, source)
    else:
        arguments.check_even(group, parts.name, output, source, whole_rows=False)


def _check_scatter(group: Any, parts: Parts, given: Arguments) -> None:
    (output,) = parts.outputs
    arguments.check_scatter_list(group, parts.name, output, given["input_tensors"])


def _check_all_to_all(group: Any, parts: Parts, given: Arguments) -> None:
    arguments.check_list(group, parts.name, "the output list", parts.outputs)
    arguments.check_list(group, parts.name, "the input list", parts.inputs)


_SHAPES: dict[str, Callable[[Any, Parts, Arguments], None]] = {
    "all_reduce": lambda group, parts, given: arguments.check_same_shapes(
        parts.name, parts.inputs
    ),
    "all_reduce_coalesced": lambda group, parts, given: arguments.check_one_dtype(
        parts.name, parts.inputs
    ),
    "broadcast": lambda group, parts, given: arguments.check_same_shapes(
        parts.name, parts.inputs
    ),
    "reduce": lambda group, parts, given: arguments.check_some(parts.name, parts.inputs),
    "all_gather": lambda group, parts, given: arguments.check_gather_lists(
        group, parts.name, parts.outputs, parts.inputs
    ),
    "all_gather_coalesced": lambda group, parts, given: arguments.check_coalesced_lists(
        group, parts.name, given["output_lists"], parts.inputs
    ),
    "all_gather_into_tensor": _check_pairs,
    "all_gather_into_tensor_coalesced": _check_pairs,
    "reduce_scatter_tensor": _check_pairs,
    "reduce_scatter_tensor_coalesced": _check_pairs,
    "gather": _check_root_lists,
    "scatter": _check_root_lists,
    "reduce_scatter": _check_scatter,
    "all_to_all": _check_all_to_all,
    "all_to_all_single": _check_splits,
}
