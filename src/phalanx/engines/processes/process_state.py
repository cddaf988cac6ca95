"""What a call may leave changed in a process that lives on, and how it is put back.

Used by `rank_beginning.py`, between two calls that are to know nothing of each other. Only what
torch, Python and the system keep themselves; modules' own variables stay as they are, and for
what a rank has from the program see `inherited_settings.py`. What cannot be put back makes the
process worn: it is replaced.
"""

from __future__ import annotations

import builtins
import os
import resource
import signal
import sys
import warnings
from typing import Any

import torch

from phalanx.backend.torch_private import private, private_modes

_TIMERS = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
_BUILTINS = ("breakpoint", "input", "open", "print")
_DEVICES = ("cpu", "cuda")
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


class Leftovers:
    """Made before the first call."""

    def __init__(self) -> None:
        self._torch = _torch_settings()
        self._lasting = _lasting()
        self._filters = list(warnings.filters)
        self._show_warning = warnings.showwarning
        self._signals = _signal_handlers()
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._builtins = {name: getattr(builtins, name) for name in _BUILTINS}
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._numpy = _numpy_errors()

    @property
    def stay(self) -> bool:
        """Whether something is there that cannot be put back."""
        return _lasting() != self._lasting

    def put_back(self) -> None:
        if _torch_settings() != self._torch:
            _set_torch(self._torch)
        self._put_warnings_back()
        self._put_signals_back()
        os.umask(self._umask)
        vars(builtins).update(self._builtins)
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self._numpy is not None:
            numpy.seterr(**self._numpy)

    def _put_warnings_back(self) -> None:
        warnings.showwarning = self._show_warning
        if warnings.filters != self._filters:
            warnings.resetwarnings()  # which also drops what was decided by other filters
            warnings.filters[:] = self._filters  # type: ignore[index]

    def _put_signals_back(self) -> None:
        for name in _TIMERS:
            signal.setitimer(getattr(signal, name), 0)
        now = _signal_handlers()
        for number, handler in self._signals.items():
            if now[number] is not handler and handler is not None:
                signal.signal(number, handler)


def _torch_settings() -> dict[str, Any]:
    return {
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "autocast": [torch.is_autocast_enabled(device) for device in _DEVICES],
        "autocast_dtypes": [torch.get_autocast_dtype(device) for device in _DEVICES],
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "flush_denormal": sys.float_info.min / 2 == 0.0,
    }


def _set_torch(before: dict[str, Any]) -> None:
    torch.set_grad_enabled(before["gradients"])
    torch.set_num_threads(before["threads"])
    for device, enabled, dtype in zip(
        _DEVICES, before["autocast"], before["autocast_dtypes"], strict=True
    ):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(before["autocast_cache"])
    torch.set_flush_denormal(before["flush_denormal"])


def _lasting() -> tuple[Any, ...]:
    """Contexts that were entered and never left, standard streams that were closed or lead
    elsewhere, and limits, which may not be raised again."""
    streams = [each is None or each.closed for each in (sys.__stdout__, sys.__stderr__)]
    limits = [resource.getrlimit(getattr(resource, name)) for name in _LIMITS]
    return (*_modes(), streams, [_file_of(fd) for fd in range(3)], limits)


def _file_of(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _modes() -> tuple[Any, ...]:
    """Those that are on besides the one that the default device is."""
    device = private_modes.default_device()
    if device is not None:
        torch.set_default_device(None)
    found = (
        torch.is_inference_mode_enabled(),
        private.function_modes(),
        private.dispatch_modes(),
    )
    if device is not None:
        torch.set_default_device(device)
    return found


def _signal_handlers() -> dict[signal.Signals, Any]:
    return {
        number: signal.getsignal(number)
        for number in signal.Signals
        if number not in (signal.SIGKILL, signal.SIGSTOP)
    }


def _numpy_errors() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.geterr()
