"""Calls in which a rank names a device to Python code of torch, or asks how many there are.

Replaced while a world runs that has a `DeviceMap`; other worlds, and threads that belong to no
rank, get torch's own answers. `torch.cuda` and `torch.accelerator` read numbers in one function
each, which also serves `torch.load`. Classes made in C++ that take a device and are seen by no
function mode get a facade. What is asked (`current_device()`) is answered with the GPU that is
there; only `device_count()` answers with what ranks may name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from phalanx.backend.devices import device_mode
from phalanx.backend.devices.device_map import REPLACES, DeviceMap
from phalanx.backend.session import context_here
from phalanx.backend.torch_private.private_devices import index_readers

Patch = tuple[Any, str, Any]


def device_patches() -> list[Patch]:
    """(owner, attribute, replacement)"""
    patches: list[Patch] = [
        (torch.cuda, "device_count", _counting(torch.cuda.device_count)),
        (torch.cuda, "is_available", _hiding(torch.cuda.is_available)),
        *((owner, name, _reading(getattr(owner, name))) for owner, name in index_readers()),
        *((torch, name, _facade(getattr(torch, name))) for name in _MADE_IN_C),
        *device_mode.backward_patches(),
    ]
    by_index = getattr(getattr(torch, "accelerator", None), "device_index", None)
    if by_index is not None:
        patches.append((by_index, "__init__", _beginning(by_index.__init__)))
    return patches


def devices_here() -> DeviceMap | None:
    """What the calling thread's rank is to see, if that is not what there is."""
    context = context_here()
    return None if context is None else context.session.devices


def _counting(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def device_count() -> int:
        devices = devices_here()
        return original() if devices is None else devices.shown

    setattr(device_count, REPLACES, original)
    return device_count


def _hiding(original: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(original)
    def is_available() -> bool:
        devices = devices_here()
        return original() if devices is None else devices.shown > 0

    setattr(is_available, REPLACES, original)
    return is_available


def _reading(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def read(device: Any, *args: Any, **kwargs: Any) -> int:
        devices = devices_here()
        if devices is None:
            return original(device, *args, **kwargs)
        return original(devices.place(device), *args, **kwargs)

    return read


def _beginning(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def begin(self: Any, device: Any) -> None:
        devices = devices_here()
        original(self, device if devices is None else devices.place(device))

    return begin


_MADE_IN_C = ("Generator", "Stream", "Event")


class _DeviceFacade(type):
    """Stands for a class of torch's: makes its instances, which are instances of both. What is
    derived from it is derived from torch's, and outlives the run (dynamo has such classes)."""

    original: Any

    def __new__(cls, name: str, bases: tuple[Any, ...], about: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, about)
        real = (base.original if isinstance(base, _DeviceFacade) else base for base in bases)
        return type(name, tuple(real), about)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        devices = devices_here()
        if devices is None:
            return cls.original(*args, **kwargs)
        if args:
            args = (devices.place(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = devices.place(kwargs["device"])
        return cls.original(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


def _facade(original: Any) -> Any:
    about = {"original": original, "__module__": "torch", "__doc__": original.__doc__}
    return _DeviceFacade(original.__name__, (), about)
