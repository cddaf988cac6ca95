"""What one rank can see alone: whether the arguments of its own call make sense.

Used by the process group before a call meets the others. Each function raises at the caller,
with what was given and what is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phalanx.backend.rank_errors import (
    InvalidCallError,
    NotSupportedError,
    UnsupportedTypeError,
)


def check_root(group: Any, name: str, root: int) -> int:
    if not 0 <= root < group.size():
        raise InvalidCallError(
            f"{name}: rank {root} is not in this group, which has ranks 0..{group.size() - 1}"
        )
    return root


def check_peer(group: Any, name: str, peer: int) -> int:
    check_root(group, name, peer)
    if peer == group.rank():
        raise InvalidCallError(f"{name}: rank {peer} cannot exchange a message with itself")
    return peer


def check_list(group: Any, name: str, what: str, given: Sequence[Tensor]) -> None:
    if len(given) != group.size():
        raise InvalidCallError(
            f"{name}: {what} has {len(given)} tensors, but the group has {group.size()} ranks"
        )


def check_some(name: str, tensors: Sequence[Tensor]) -> None:
    if not tensors:
        raise NotSupportedError(f"{name}: the list of tensors is empty; give at least one")


def check_single(name: str, tensors: list[Tensor]) -> list[Tensor]:
    check_some(name, tensors)
    if len(tensors) != 1:
        raise InvalidCallError(f"{name}: takes one tensor from each rank, not {len(tensors)}")
    return tensors


def check_one_dtype(name: str, tensors: Sequence[Tensor]) -> None:
    check_some(name, tensors)
    dtypes = [tensor.dtype for tensor in tensors]
    if dtypes.count(dtypes[0]) != len(dtypes):
        found = " and ".join(map(str, dict.fromkeys(dtypes)))
        raise UnsupportedTypeError(f"{name}: all tensors must have one dtype; got {found}")


def check_same_shapes(name: str, tensors: Sequence[Tensor]) -> None:
    """Several tensors of one rank that count as one."""
    check_one_dtype(name, tensors)
    for index, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise InvalidCallError(
                f"{name}: tensor {index} has shape {tuple(tensor.shape)}, tensor 0 "
                f"{tuple(tensors[0].shape)}; all tensors of a rank must have one shape here"
            )


def check_pairs(name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    check_some(name, inputs)
    if len(outputs) != len(inputs):
        raise InvalidCallError(f"{name}: {len(inputs)} inputs but {len(outputs)} outputs")


def check_gather_lists(group: Any, name: str, outputs: Any, inputs: Any) -> None:
    """Each list of outputs is for the inputs of all ranks."""
    check_some(name, inputs)
    if len(outputs) != len(inputs):
        raise InvalidCallError(
            f"{name}: {len(inputs)} inputs but {len(outputs)} lists of outputs"
        )
    wanted = group.size() * len(inputs)
    for output in outputs:
        if len(output) != wanted:
            raise InvalidCallError(
                f"{name}: the output list has {len(output)} tensors, but the group has "
                f"{group.size()} ranks"
                + (f" with {len(inputs)} inputs each" if len(inputs) > 1 else "")
            )
        check_one_dtype(name, [*inputs, *output])


def check_coalesced_lists(group: Any, name: str, lists: Any, inputs: Sequence[Tensor]) -> None:
    """One list for each rank, with an output for each input."""
    check_some(name, inputs)
    if len(lists) != group.size():
        raise InvalidCallError(
            f"{name}: {len(lists)} lists of outputs, but the group has {group.size()} ranks"
        )
    for outputs in lists:
        check_pairs(name, outputs, inputs)
        for output, given in zip(outputs, inputs, strict=True):
            check_same_shapes(name, [given, output])


def check_scatter_list(group: Any, name: str, output: Tensor, lists: Any) -> Sequence[Tensor]:
    """The inputs for one output: a tensor for each rank."""
    if len(lists) != 1:
        raise InvalidCallError(f"{name}: one output but {len(lists)} lists of inputs")
    given: Sequence[Tensor] = lists[0]
    check_list(group, name, "the input list", given)
    check_one_dtype(name, [output, *given])
    mine = given[group.rank()]
    if mine.numel() != output.numel():
        raise InvalidCallError(
            f"{name}: the output has {output.numel()} elements, but input {group.rank()} has "
            f"{mine.numel()}"
        )
    return given


def check_root_lists(
    group: Any,
    name: str,
    what: str,
    lists: Any,
    *,
    each: Tensor,
    root: int | None,
    is_root: bool,
) -> Sequence[Tensor]:
    """What only the root passes: a tensor for each rank, like `each`, which all pass."""
    given: Sequence[Tensor] = lists[0] if lists else []
    if not is_root:
        if given:
            raise InvalidCallError(
                f"{name}: only the root (rank {root} of the group) gives {what}"
            )
        return []
    if len(lists) > 1:
        raise InvalidCallError(f"{name}: {len(lists)} lists; give one {what}")
    check_list(group, name, what, given)
    check_one_dtype(name, [each, *given])
    for index, tensor in enumerate(given):
        if tensor.numel() != each.numel():
            raise InvalidCallError(
                f"{name}: {what}[{index}] has {tensor.numel()} elements, but the tensor "
                f"has {each.numel()}"
            )
    return given


def check_flat(group: Any, name: str, *, whole: Tensor, part: Tensor) -> None:
    """`whole` must hold one `part` for each rank."""
    if whole.dtype != part.dtype:
        raise InvalidCallError(f"{name}: output is {whole.dtype} and input is {part.dtype}")
    if whole.numel() != part.numel() * group.size():
        raise InvalidCallError(
            f"{name}: the larger tensor has {whole.numel()} elements; with {group.size()} "
            f"ranks and {part.numel()} elements each it must have "
            f"{part.numel() * group.size()}"
        )


def check_even(
    group: Any, name: str, output: Tensor, given: Tensor, *, whole_rows: bool
) -> None:
    """Without split sizes each rank gets an equal part of the memory, on some backends of the
    rows."""
    size = group.size()
    if output.numel() != given.numel():
        raise InvalidCallError(
            f"{name}: the input has {given.numel()} elements and the output {output.numel()}; "
            "without split sizes they must have the same number"
        )
    if given.numel() % size:
        raise InvalidCallError(
            f"{name}: {given.numel()} elements do not divide among {size} ranks; give "
            "input_split_sizes and output_split_sizes"
        )
    if whole_rows:
        check_splits(group, name, "input", given, ())
        check_splits(group, name, "output", output, ())


def check_tag(name: str, tag: int) -> int:
    if tag < 0:
        raise InvalidCallError(f"{name}: tag {tag} is negative; tags are 0 and up")
    return tag


def as_splits(name: str, which: str, given: Sequence[int] | None) -> tuple[int, ...]:
    if isinstance(given, Tensor):
        raise UnsupportedTypeError(
            f"{name}: {which}_split_sizes is a tensor; give a list of whole numbers, e.g. "
            "sizes.tolist()"
        )
    return tuple(given or ())


def check_splits(
    group: Any, name: str, which: str, tensor: Tensor, splits: Sequence[int]
) -> None:
    if not tensor.dim():
        raise InvalidCallError(f"{name}: the {which} is a single number, without rows to split")
    size, rows = group.size(), tensor.shape[0]
    if not splits:
        if rows % size:
            raise InvalidCallError(
                f"{name}: dimension 0 of the {which} has {rows} rows, which do not divide "
                f"among {size} ranks; give {which}_split_sizes"
            )
        return
    if len(splits) != size:
        raise InvalidCallError(
            f"{name}: {which}_split_sizes has {len(splits)} entries for {size} ranks"
        )
    if min(splits) < 0:
        raise InvalidCallError(f"{name}: {which}_split_sizes {list(splits)} has a negative one")
    if sum(splits) != rows:
        raise InvalidCallError(
            f"{name}: {which}_split_sizes {list(splits)} sum to {sum(splits)}, but dimension "
            f"0 of the {which} has {rows} rows"
        )


def check_rows(name: str, output: Tensor, given: Tensor) -> None:
    """Rows are exchanged as they are, so input and output must have the same."""
    if output.shape[1:].numel() != given.shape[1:].numel():
        raise InvalidCallError(
            f"{name}: a row of the input has {given.shape[1:].numel()} elements, a row of the "
            f"output {output.shape[1:].numel()}"
        )
