"""Who made an asynchronous call: the program itself, or torch on its behalf.

Used by the guard of buffers in flight and by the check for unwaited work. Only what the
program's own Python began is theirs to judge: DDP's reducer, FSDP and DTensor wait for what
they begin in ways of their own. Must never cost a synchronous call anything.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

INSIDE = 0
"""torch itself, or nobody known: a thread of native code."""
OWN = 1
"""The program, which gets a `Work`."""
FUNCTIONAL = 2
"""The program, through a functional collective, which gets a tensor that waits by itself."""

_PASS, _PASS_FUNCTIONAL, _PASS_UNLESS_WAITING = 3, 4, 5

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_HERE = tuple(os.path.join(_ROOT, *each, "") for each in (("backend",), ("engines", "remote")))
"""The folders of the code between a call of torch and `origin_here`."""
_THIN = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",
    "torch/utils/_contextlib.py",
    "torch/overrides.py",
    "/contextlib.py",
    "/typing_extensions.py",
)
"""What lies between a program's line and the group, whoever wrote the line."""
_FUNCTIONAL_FILES = (
    "torch/distributed/_functional_collectives.py",
    "torch/_library/autograd.py",
    "torch/_ops.py",
)
_WAITING = frozenset({"send", "recv", "monitored_barrier"})
"""Functions of torch that wait for the `Work` themselves."""

_known: dict[str, int] = {}
"""By file: a code object takes long to hash."""


def origin_here(depth: int = 2) -> int:
    """For the call whose frame is `depth` above."""
    frame: FrameType | None = sys._getframe(depth)
    functional = False
    while frame is not None:
        code = frame.f_code
        kind = _known.get(code.co_filename)
        if kind is None:
            kind = _known[code.co_filename] = _kind_of(code.co_filename)
        if kind == OWN:
            return FUNCTIONAL if functional else OWN
        if kind == INSIDE or (kind == _PASS_UNLESS_WAITING and code.co_name in _WAITING):
            return INSIDE
        if kind == _PASS_FUNCTIONAL:
            functional = True
        frame = frame.f_back
    return INSIDE


def is_waited_for(depth: int = 2) -> bool:
    """Whether the message whose frame is `depth` above is one of torch's own `send` or `recv`,
    which wait for it."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        kind = _known.get(code.co_filename)
        if kind is None:
            kind = _known[code.co_filename] = _kind_of(code.co_filename)
        if kind == _PASS_UNLESS_WAITING and code.co_name in _WAITING:
            return True
        if kind in (OWN, INSIDE):
            return False
        frame = frame.f_back
    return False


def _kind_of(name: str) -> int:
    if name.startswith(_HERE):
        return _PASS
    if name.startswith("<") and not name.startswith(("<stdin", "<ipython", "<python-input")):
        return _PASS  # generated: what called it tells
    if name.endswith(_FUNCTIONAL_FILES):
        return _PASS_FUNCTIONAL
    if name.endswith(_THIN):
        return _PASS_UNLESS_WAITING if name.endswith(_THIN[0]) else _PASS
    if f"{os.sep}site-packages{os.sep}torch{os.sep}" in name or "torchinductor_" in name:
        return INSIDE
    if f"{os.sep}torch{os.sep}distributed{os.sep}" in name:
        return INSIDE
    return OWN
