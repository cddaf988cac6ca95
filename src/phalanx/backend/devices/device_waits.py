"""Waits for a device in place of `Work.wait`: what is complete there, a program may use.

`torch_patches.py` puts these around torch's functions. `torch.cuda.synchronize` waits for all
that was launched, so for collectives on CUDA tensors too; the `synchronize` of a stream or an
event waits for no other stream, and what is complete by then has been waited for. Without
tensors on a device in flight nothing happens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from phalanx.backend.session import context_here
from phalanx.backend.work.work import wait_for
from phalanx.matching.slots import Call

LIMIT = 1800.0
"""Seconds: as long as torch lets groups take."""


def device_patches() -> list[tuple[Any, str, Any]]:
    name = "synchronize"
    owners = [torch.cuda, torch.cuda.Stream, torch.cuda.Event]
    if hasattr(torch, "accelerator"):
        owners.append(torch.accelerator)
    return [
        (owner, name, _waiting(vars(owner)[name], for_all=not isinstance(owner, type)))
        for owner in owners
        if name in vars(owner)
    ]


def is_on_device(call: Call) -> bool:
    return call.point is not None


def _waiting(original: Callable[..., Any], *, for_all: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def synchronize(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        context = context_here()
        book = context.in_flight if context is not None else None
        for flight in list(book.flights) if book is not None else ():
            call: Call | None = flight.call
            if call is None or flight.over or not is_on_device(call):
                continue
            if for_all or call.done:
                wait_for(call, LIMIT)
        return result

    return synchronize
