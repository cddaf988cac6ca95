"""Who called an operator of c10d's: what torch's own frames say about whether it waits.

Used by `watcher.py` for every call, so the answer is kept for each code object. Must never look
at the program's own frames.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.engines.remote.c10d_arguments import Parts

# Files of torch whose functions go into C++ that calls collectives and waits for them there.
_WAITING_IN_CPP = ("torch/distributed/utils.py", "torch/nn/parallel/distributed.py")
_C10D = "torch/distributed/distributed_c10d.py"
_BACKWARD = "torch/autograd/graph.py"

API, WAITING, NATIVE, IN_BACKWARD, OTHER, BATCHED = range(6)
"""The public functions; those of them that wait; C++ that waits; DDP's reducer; functional
collectives and the like; `batch_isend_irecv`."""


def _codes(*names: str) -> frozenset[Any]:
    functions: list[Any] = [inspect.unwrap(getattr(dist, name)) for name in names]
    return frozenset(function.__code__ for function in functions)


# `send` is `isend` and a wait, in torch's own code too.
_BEGINNING, _ENDING = _codes("isend", "irecv"), _codes("send", "recv")
_BATCHING = _codes("batch_isend_irecv")
_IN_MODES = ("__torch_function__", "handle_torch_function")

_known: dict[Any, int] = {}


def _above(frame: Any) -> Any:
    """Who called `isend` or `irecv`. While a function mode is on, of the guard's or of the
    program's, they call themselves through it."""
    frame = frame.f_back
    while frame is not None and (
        frame.f_code in _BEGINNING or frame.f_code.co_name in _IN_MODES
    ):
        frame = frame.f_back
    return frame


def as_batched(parts: Parts, frame: Any) -> Parts:
    """A message that `batch_isend_irecv` sends or receives."""
    first = private.is_first_of_batch(_above(frame))
    return parts._replace(batched=True, begins_batch=first)


def known_to_wait(function: Any) -> Any:
    """The same function of C++, which waits there for what it calls, with a frame to know it
    by: whose ever code calls it."""

    def call(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    _known[call.__code__] = NATIVE
    return call


def caller_of(frame: Any) -> int:
    """Who called the operator: the innermost frame of Python's, below which is C++."""
    code = frame.f_code if frame is not None else None
    if code in _BEGINNING:
        above = _above(frame)
        code = code if above is None else above.f_code
    kind = _known.get(code)
    if kind is None:
        file = code.co_filename if code is not None else ""
        kind = OTHER
        if code in _ENDING:
            kind = WAITING
        elif code in _BATCHING:
            kind = BATCHED
        elif file.endswith(_C10D):
            kind = API
        elif file.endswith(_WAITING_IN_CPP):
            kind = NATIVE
        elif file.endswith(_BACKWARD):
            kind = IN_BACKWARD
        _known[code] = kind
    return kind
