"""What one rank can see alone: whether the arguments of its own call make sense.

Used by the process group before a call meets the others. Each function raises at the caller,
with what was given and what is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phalanx.backend.raising import InvalidCallError


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


def check_gather_lists(group: Any, name: str, outputs: Any, inputs: Any) -> None:
    if len(outputs) != len(inputs):
        raise InvalidCallError(
            f"{name}: {len(inputs)} inputs but {len(outputs)} lists of outputs"
        )
    for output in outputs:
        check_list(group, name, "the output list", output)


def check_scatter_lists(group: Any, name: str, outputs: Any, inputs: Any) -> None:
    if len(outputs) != len(inputs):
        raise InvalidCallError(
            f"{name}: {len(outputs)} outputs but {len(inputs)} lists of inputs"
        )
    for output, given in zip(outputs, inputs, strict=True):
        check_list(group, name, "the input list", given)
        mine = given[group.rank()]
        if mine.numel() != output.numel():
            raise InvalidCallError(
                f"{name}: the output has {output.numel()} elements, but input "
                f"{group.rank()} has {mine.numel()}"
            )


def check_root_list(
    group: Any, name: str, what: str, given: Sequence[Tensor], *, each: Tensor
) -> None:
    """What only the root passes: a tensor for each rank, as large as the one all pass."""
    check_list(group, name, what, given)
    for index, tensor in enumerate(given):
        if tensor.numel() != each.numel():
            raise InvalidCallError(
                f"{name}: {what}[{index}] has {tensor.numel()} elements, but the tensor has "
                f"{each.numel()}"
            )


def check_flat(group: Any, name: str, *, whole: Tensor, part: Tensor) -> None:
    """`whole` must hold one `part` for each rank, in one piece of memory."""
    if whole.dtype != part.dtype:
        raise InvalidCallError(f"{name}: output is {whole.dtype} and input is {part.dtype}")
    if whole.numel() != part.numel() * group.size():
        raise InvalidCallError(
            f"{name}: the larger tensor has {whole.numel()} elements; with {group.size()} "
            f"ranks and {part.numel()} elements each it must have "
            f"{part.numel() * group.size()}"
        )
    if not whole.is_contiguous():
        raise InvalidCallError(f"{name}: tensors must be contiguous")


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
