"""Where checks stand in a call's way: what one rank can see alone, and what met.

`check_*` raise at the caller; `judge_*` translate calls into the words of `phalanx.model`,
ask the analysis layer and return one error for each call, or None. Used by the process
group. Deciding is done in `analysis/`, wording in `report/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phalanx.analysis.matching import find_mismatch, find_pair_mismatch
from phalanx.backend.describe import describe_call, describe_past, group_of
from phalanx.backend.session import Session
from phalanx.core.meeting import Call, Slot
from phalanx.model import Meeting


def check_root(group: Any, name: str, root: int) -> int:
    if not 0 <= root < group.size():
        raise ValueError(
            f"{name}: rank {root} is not in this group, which has ranks 0..{group.size() - 1}"
        )
    return root


def check_peer(group: Any, name: str, peer: int) -> int:
    check_root(group, name, peer)
    if peer == group.rank():
        raise ValueError(f"{name}: rank {peer} cannot exchange a message with itself")
    return peer


def check_list(group: Any, name: str, what: str, given: Sequence[Tensor]) -> None:
    if len(given) != group.size():
        raise ValueError(
            f"{name}: {what} has {len(given)} tensors, but the group has {group.size()} ranks"
        )


def check_gather_lists(group: Any, name: str, outputs: Any, inputs: Any) -> None:
    if len(outputs) != len(inputs):
        raise ValueError(f"{name}: {len(inputs)} inputs but {len(outputs)} lists of outputs")
    for output in outputs:
        check_list(group, name, "the output list", output)


def check_scatter_lists(group: Any, name: str, outputs: Any, inputs: Any) -> None:
    if len(outputs) != len(inputs):
        raise ValueError(f"{name}: {len(outputs)} outputs but {len(inputs)} lists of inputs")
    for output, given in zip(outputs, inputs, strict=True):
        check_list(group, name, "the input list", given)
        mine = given[group.rank()]
        if mine.numel() != output.numel():
            raise ValueError(
                f"{name}: the output has {output.numel()} elements, but input "
                f"{group.rank()} has {mine.numel()}"
            )


def check_root_list(group: Any, name: str, what: str, given: Any, root: int) -> None:
    if root == group.rank():
        check_list(group, name, what, given)


def check_flat(group: Any, name: str, *, whole: Tensor, part: Tensor) -> None:
    """`whole` must hold one `part` for each rank, in one piece of memory."""
    if whole.dtype != part.dtype:
        raise TypeError(f"{name}: output is {whole.dtype} and input is {part.dtype}")
    if whole.numel() != part.numel() * group.size():
        raise ValueError(
            f"{name}: the larger tensor has {whole.numel()} elements; with {group.size()} "
            f"ranks and {part.numel()} elements each it must have "
            f"{part.numel() * group.size()}"
        )
    if not whole.is_contiguous():
        raise ValueError(f"{name}: tensors must be contiguous")


def check_splits(
    group: Any, name: str, which: str, tensor: Tensor, splits: Sequence[int]
) -> None:
    size, rows = group.size(), tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size:
            raise RuntimeError(
                f"{name}: dimension 0 of the {which} has {rows} rows, which do not divide "
                f"among {size} ranks; give {which}_split_sizes"
            )
        return
    if len(splits) != size:
        raise RuntimeError(
            f"{name}: {which}_split_sizes has {len(splits)} entries for {size} ranks"
        )
    if sum(splits) != rows:
        raise RuntimeError(
            f"{name}: {which}_split_sizes {list(splits)} sum to {sum(splits)}, but dimension "
            f"0 of the {which} has {rows} rows"
        )


def meeting_of(slot: Slot) -> Meeting:
    """The slot, whether complete or not, as a value for the analysis."""
    calls = [call for call in slot.calls if call is not None]
    met = calls[0].assembly
    return Meeting(
        group=group_of(met),
        number=slot.number,
        ops=tuple(describe_call(call) for call in calls),
        history={
            rank: tuple(
                describe_past(met, rank, past)
                for past in met.history[member]
                if past[0] < slot.number
            )
            for member, rank in enumerate(met.ranks)
        },
    )


def judge_meeting(session: Session, slot: Slot) -> list[Exception] | None:
    verdict = find_mismatch(meeting_of(slot)) if session.checked else None
    if verdict is None:
        return None
    return [session.report(verdict) for _ in slot.calls]


def judge_message(session: Session, send: Call, receive: Call) -> list[Exception] | None:
    sent, wanted = send.inputs[0], receive.outputs[0]
    if sent.dtype == wanted.dtype and sent.numel() == wanted.numel():
        return None
    verdict = find_pair_mismatch(describe_call(send), describe_call(receive))
    return [session.report(verdict), session.report(verdict)] if verdict else None
