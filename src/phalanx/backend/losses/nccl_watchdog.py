"""What torch's watchdog does to a rank whose NCCL operation has outlived its timeout.

By torch's documentation of its NCCL variables, the thread that watches over the
communicators finds a collective that ran longer than the group's timeout and, by
`TORCH_NCCL_ASYNC_ERROR_HANDLING`, ends the process (1, and 3, the default), only aborts the
communicators (2) or does nothing (0). With `TORCH_NCCL_BLOCKING_WAIT=1` the rank's own wait
raises instead. Here the rank's wait raises the watchdog's error in all cases; where the process
would end, the rank's connections close, and its groups refuse all later calls with that error.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from phalanx.backend.collectives.group_abort import refuse_calls
from phalanx.backend.losses.call_tensors import flat
from phalanx.backend.losses.lost_ranks import lose_rank
from phalanx.matching.slots import Call

_OP_TYPES = {
    "all_reduce": "ALLREDUCE",
    "all_reduce_coalesced": "ALLREDUCE_COALESCED",
    "broadcast": "BROADCAST",
    "reduce": "REDUCE",
    "all_gather": "ALLGATHER",
    "all_gather_into_tensor": "_ALLGATHER_BASE",
    "gather": "GATHER",
    "scatter": "SCATTER",
    "reduce_scatter": "REDUCE_SCATTER",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL",
    "all_to_all_single": "ALLTOALL_BASE",
    "barrier": "BARRIER",
    "send": "SEND",
    "recv": "RECV",
}
"""What torch calls them in this text (`OpType`)."""


def watchdog_error(call: Call, timeout: float) -> Exception:
    """Also ends what the process would take with it."""
    context = call.strand.local
    error = dist.DistBackendError(_text(call, timeout))
    handling = context.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    if handling in ("1", "3") and context.environ.get("TORCH_NCCL_BLOCKING_WAIT") != "1":
        _end_process(context, error)
    return error


def _end_process(context: Any, error: Exception) -> None:
    how = "was ended by NCCL's watchdog"
    lose_rank(context.session, context.rank, how)
    for met in context.session.mailboxes.values():
        end = met.ends.get(context.rank)
        if end is not None:
            refuse_calls(end, str(error))


def _text(call: Call, timeout: float) -> str:
    number = 0 if call.number is None else call.number
    taken = sum(tensor.numel() for tensor in flat(call.inputs or call.outputs))
    given = sum(tensor.numel() for tensor in flat(call.outputs or call.inputs))
    kind = _OP_TYPES.get(call.name, call.name.upper())
    limit = f"{timeout * 1000:.0f}"
    sizes = f"NumelIn={taken}, NumelOut={given}"
    return (
        f"[Rank {call.strand.local.rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number + 1}, OpType={kind}, {sizes}, Timeout(ms)={limit}) ran for "
        f"{limit} milliseconds before timing out."
    )
