"""`ProcessGroup.abort`: what it does is the backend's.

Gloo has none: the group goes on until its last reference is gone, which is when torch's
`_abort_process_group` has taken it out of its tables (measured, torch 2.13). NCCL ends the
communicator: calls in flight of the rank that aborts fail, whichever of its threads waits for
them, and later ones are refused; the other members are left waiting (torch's documentation and
sources).
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch.distributed as dist

NCCL = "nccl"
_LETS_GO = "_abort_process_group"


def abort_group(end: Any) -> None:
    """The method of a rank's end of a group, which the program calls, or torch."""
    if end.name() == NCCL:
        _end_calls(end)
        end.shutdown()
        refuse_calls(end, str(_aborted(end)))
    elif sys._getframe(1).f_code.co_name == _LETS_GO:
        end.shutdown()


def _end_calls(end: Any) -> None:
    met = end._mailbox
    if met is None:
        return
    for call in met.take_back(end._member):
        call.waited = True
        call.finish(_aborted(end))


def refuse_calls(end: Any, why: str) -> None:
    """From now on all calls of this rank's end of a group fail so; others are not slowed down
    by it."""
    end._call = partial(_refuse, why)


def _refuse(why: str, name: str) -> Any:
    """In the place of `Endpoint._call`."""
    raise dist.DistBackendError(why)


def _aborted(end: Any) -> Exception:
    error: Exception = dist.DistBackendError(
        f"NCCL communicator was aborted on rank {end._member}."
    )
    return error
