"""Which GPU a rank means by `cuda:3` where there are fewer GPUs than ranks, as values.

The engine asks `plan_devices` once per world; the function mode and the replaced calls of
`torch.cuda` ask the `DeviceMap` for each index that a rank names. Knows torch's types, touches
no device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from phalanx.errors import UsageError, text_of

KIND = "cuda"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class DeviceMap:
    """Of `shown` indices that ranks may name, each means one of the first `gpus` devices.

    What is below `gpus` means itself, so an index that came out of torch can go in again. What
    is not below `shown` is left alone: torch refuses it, as with that many GPUs.

    >>> ranks = DeviceMap(gpus=2, shown=8)
    >>> [ranks.index(i) for i in range(10)]
    [0, 1, 0, 1, 0, 1, 0, 1, 8, 9]
    >>> ranks.place("cuda:5"), ranks.place("cuda"), ranks.place("cpu:5"), ranks.place(3)
    ('cuda:1', 'cuda', 'cpu:5', 1)
    """

    gpus: int
    shown: int
    used: bool = field(default=False, compare=False)
    """Whether any rank has named an index that means another."""

    @property
    def is_needed(self) -> bool:
        """Whether any index means another one."""
        return 0 < self.gpus < self.shown

    def index(self, given: int) -> int:
        if not self.gpus <= given < self.shown or not self.gpus:
            return given
        self.used = True
        return given % self.gpus

    def place(self, given: Any) -> Any:
        """What a device argument means: a string, a number, a `torch.device`; else itself."""
        if isinstance(given, str):
            return self._text(given)
        if isinstance(given, int) and not isinstance(given, bool):
            return self.index(given)
        if isinstance(given, torch.device) and given.type == KIND and given.index is not None:
            index = self.index(given.index)
            return given if index == given.index else torch.device(KIND, index)
        return given

    def _text(self, given: str) -> str:
        kind, _, index = given.partition(":")
        if kind != KIND or not index.isdecimal():
            return given
        return f"{KIND}:{self.index(int(index))}"


HIDDEN = DeviceMap(gpus=0, shown=0)
"""Ranks see no GPU."""


def plan_devices(device: str | None, gpus: int | None, *, per_node: int) -> DeviceMap | None:
    """What ranks are to see; None: what there is. `auto` shares the GPUs where there are fewer
    than ranks of a node, and is content without any. None leaves everything as it is."""
    if device is None and gpus is None:
        return None
    if device == "cpu":
        return HIDDEN
    there = count_gpus()
    if not there and device == "auto" and gpus is None:
        return None
    if not there:
        raise UsageError(_no_gpu(device, gpus))
    if gpus is not None and gpus > there:
        raise UsageError(
            f"gpus={gpus}: there {'is' if there == 1 else 'are'} {there} here; give a number "
            f"from 1 to {there}, or leave it out to use all"
        )
    used = gpus or there
    if used == there >= per_node:
        return None
    return DeviceMap(gpus=used, shown=max(used, per_node))


def _no_gpu(device: str | None, gpus: int | None) -> str:
    given = f"device={device!r}" if device == "cuda" else f"gpus={gpus}"
    why = "torch finds no GPU here"
    if torch.version.cuda is None:
        why = f"this torch ({torch.__version__}) is built without CUDA"
    elif os.environ.get(VISIBLE) == "":
        why = "CUDA_VISIBLE_DEVICES is empty"
    return f"{given}: {why}; leave it out, or use device='cpu'"


def visible_to_processes(
    device: str | None, gpus: int | None, *, per_node: int
) -> dict[str, str]:
    """The same for ranks that are processes, as their environment: which GPUs they see. Each
    needs one of its own where it is to have one."""
    if device == "cpu":
        return {VISIBLE: ""}
    plan = plan_devices(device, gpus, per_node=per_node)
    if plan is None:
        return {}
    if plan.is_needed and device == "cuda":
        raise UsageError(
            f"device='cuda': {per_node} ranks on {_number(plan.gpus)}: a process needs one of "
            "its own, because NCCL refuses two ranks on one; let ranks share with "
            f"engine='threads', or take ranks={plan.gpus}"
        )
    if gpus is None:
        return {}
    given = os.environ.get(VISIBLE)
    names = given.split(",") if given else [str(i) for i in range(gpus)]
    return {VISIBLE: ",".join(names[:gpus])}


def hint_for(
    error: BaseException, devices: DeviceMap | None, *, ranks: int
) -> tuple[tuple[str, str], ...]:
    """A line for the report of a rank that named a GPU which is not there, where ranks could
    have shared one."""
    if devices is not None or "invalid device ordinal" not in text_of(error):
        return ()
    there = count_gpus()
    if not 0 < there < ranks:
        return ()
    return (("hint", f"{ranks} ranks and {_number(there)}: device='cuda' lets ranks share"),)


def count_gpus() -> int:
    """How many there are for this process, also around a nested run. Asking the driver takes
    long, so it is done once."""
    if not _torchs_own(torch.cuda.is_available)():
        return 0
    visible = os.environ.get(VISIBLE)
    return _count(_torchs_own(torch.cuda.device_count), visible)


def _torchs_own(function: Any) -> Any:
    return getattr(function, REPLACES, function)


REPLACES = "phalanx_replaces"
"""Where a function that stands for one of torch's keeps that."""


@lru_cache(maxsize=8)
def _count(ask: Any, visible: str | None) -> int:
    return int(ask())


def render_sharing(devices: DeviceMap, ranks: int) -> str:
    """One line for the user whose ranks named GPUs that are not there.

    >>> render_sharing(DeviceMap(gpus=1, shown=8), 8)
    '8 ranks shared 1 GPU: cuda:1 to cuda:7 stood for cuda:0'
    >>> render_sharing(DeviceMap(gpus=2, shown=4), 8)
    '8 ranks shared 2 GPUs: cuda:2 stood for cuda:0, cuda:3 for cuda:1'
    """
    gpus, shown = devices.gpus, devices.shown
    what = f"{ranks} ranks shared {_number(gpus)}: "
    if gpus == 1 and shown > 2:
        return what + f"cuda:1 to cuda:{shown - 1} stood for cuda:0"
    pairs = [f"cuda:{i} for cuda:{i % gpus}" for i in range(gpus, min(shown, gpus + 4))]
    pairs[0] = pairs[0].replace(" for ", " stood for ")
    return what + ", ".join(pairs) + (", and so on" if shown > gpus + 4 else "")


def _number(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"
