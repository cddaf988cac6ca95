"""Maps the devices that a rank names in calls of torch: `torch.device("cuda", 3)`,
`zeros(2, device="cuda:3")`, `tensor.cuda(3)`, `module.to("cuda:3")`.

These end in C++, where nothing can be put in between but a function mode, which sees every
call of torch from Python, `torch.device` itself included. It is there only in threads of ranks
whose world has a `DeviceMap` that is needed; calls that take numbers in Python are in
`device_calls.py`. What comes out of torch (`tensor.device`) shows the GPU that is there.
"""

from __future__ import annotations

import functools
import operator
import threading
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from phalanx.backend.devices.device_map import KIND, DeviceMap
from phalanx.backend.torch_private import private_modes
from phalanx.backend.torch_private.private import BACKWARD_NAME
from phalanx.backend.torch_private.private_devices import PARSE_TO


class _ThreadMode(threading.local):
    """What one thread has: its mode, and whether that is on the stack, or was until torch took
    it off for one call. Not while a compiled function is running."""

    mode: _Mapping | None = None
    shown = False


_thread = _ThreadMode()


def enter_thread(devices: DeviceMap | None) -> None:
    """The calling thread is a rank's, from now on."""
    if devices is None or not devices.is_needed or _thread.mode is not None:
        return
    _thread.mode, _thread.shown = _Mapping(devices), True
    private_modes.push_function_mode(_thread.mode)


def leave_thread() -> None:
    """The thread goes on to other things, or ends."""
    mode, _thread.mode, _thread.shown = _thread.mode, None, False
    if mode is not None:
        private_modes.remove_function_mode(mode)


def backward_patches() -> list[tuple[Any, str, Any]]:
    """`Tensor.backward` is a call that the mode sees, and torch takes a mode off while that
    looks at a call. Hooks and recomputed layers run inside, so it is put back for them."""
    run = getattr(torch.autograd, BACKWARD_NAME)

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        mode = _thread.mode
        if mode is None or not _thread.shown or private_modes.has_function_mode(mode):
            return run(*args, **kwargs)
        private_modes.push_function_mode(mode)
        try:
            return run(*args, **kwargs)
        finally:
            private_modes.remove_function_mode(mode)

    return [(torch.autograd, BACKWARD_NAME, run_backward)]


def _tell_compiled(begins: bool) -> None:
    """Dynamo guards on the stack of modes and traces through them: ours must not be there."""
    mode = _thread.mode
    if mode is None:
        return
    if begins and _thread.shown:
        _thread.shown = not private_modes.remove_function_mode(mode)
    elif not begins and not _thread.shown:
        private_modes.push_function_mode(mode)
        _thread.shown = True


private_modes.listeners.append(_tell_compiled)

_PLACES = {
    torch.Tensor.to: 1,
    torch.Tensor.cuda: 1,
    torch.Tensor.pin_memory: 1,
    torch.Tensor.is_pinned: 1,
    PARSE_TO: 0,
}
"""Calls that take a device without its name, and where. All others take `device=` only."""


class _Mapping(TorchFunctionMode):
    """Exchanges the device among the arguments."""

    def __init__(self, devices: DeviceMap) -> None:
        super().__init__()
        self.devices = devices

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.device:
            args, kwargs = self._exchange_index(args, kwargs or {})
        elif func in _PLACES:
            place = _PLACES[func]
            if len(args) > place:
                args = (*args[:place], self.devices.place(args[place]), *args[place + 1 :])
        if not kwargs:
            return func(*args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.devices.place(kwargs["device"])}
        return func(*args, **kwargs)

    def _exchange_index(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`torch.device("cuda", 3)` has the index by itself; `("cuda:3")`, `(3)` and another
        device are as everywhere."""
        given = [*args, *(kwargs[name] for name in ("type", "index") if name in kwargs)]
        if len(given) != 2:
            return tuple(map(self.devices.place, args)), kwargs
        kind, index = given
        if kind == KIND and index is not None:
            return (kind, self.devices.index(operator.index(index))), {}
        return args, kwargs
