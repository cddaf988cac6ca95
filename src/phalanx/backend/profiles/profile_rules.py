"""The words in which a backend's limits are written down: a use, a rule, a profile.

One file of this package per backend lists its rules, each with its source. The process group
asks a profile before it carries a call out; the conformance suite asks it what to expect.
Nothing here moves data or looks at a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from phalanx.backend.rank_errors import InvalidCallError

REFUSES = "refuses"
"""The backend raises an error, as we do."""
CORRUPTS = "corrupts"
"""The backend says nothing and leaves wrong data behind; we raise an error."""
CRASHES = "crashes"
"""The backend takes the process down; we raise an error."""

CPU, CUDA = "cpu", "cuda"
INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True)
class TensorUse:
    """One tensor in one call, as far as backends care. An operation that works in place has
    inputs only."""

    op: str
    dtype: torch.dtype
    reduce_op: str | None = None
    device: str = CPU
    layout: str = "strided"
    part: str = INPUT
    contiguous: bool = True
    dense: bool = True
    """Its elements fill one piece of memory without gaps or overlaps, in any order."""
    channels_last: bool = False
    overlapping: bool = False
    """Several elements lie in one place, as in an expanded tensor."""
    alike: bool = True
    """Laid out as the other tensors of the same call are."""
    uneven: bool = False
    """The call has tensors of different shapes where they could be equal."""
    stacking: bool = False
    """The flat side, cut along its first dimension, has other shapes than the pieces."""
    any_source: bool = False
    empty: bool = False
    zero_dim: bool = False
    sparse_dim: int = 0
    grad: bool = False
    """A leaf that requires gradients, used where they are recorded."""

    @classmethod
    def of(cls, op: str, tensor: Tensor, **more: Any) -> TensorUse:
        """What can be read off a tensor; `more` are the other fields.

        >>> Use.of("all_reduce", torch.zeros(4)[::2], reduce_op="SUM").contiguous
        False
        """
        strided = tensor.layout is torch.strided
        found: dict[str, Any] = {
            "dtype": tensor.dtype,
            "device": tensor.device.type,
            "layout": str(tensor.layout).removeprefix("torch."),
            "empty": strided and not tensor.numel(),
            "zero_dim": not tensor.dim(),
            "grad": tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled(),
        }
        if strided and not tensor.is_contiguous():
            found |= {
                "contiguous": False,
                "dense": is_dense(tensor),
                "channels_last": is_channels_last(tensor),
                "overlapping": 0 in tensor.stride() and _repeats(tensor),
            }
        elif tensor.layout is torch.sparse_coo:
            found["sparse_dim"] = tensor.sparse_dim()
        return cls(op, **{**found, **more})


@dataclass(frozen=True)
class ProfileRule:
    """One thing that a backend does not do.

    `says` is for the user: what was given, what is possible, what to write. It may name the
    fields of the use in braces. `source` tells where this is known from.
    """

    name: str
    says: str
    source: str
    applies: Callable[[TensorUse], bool] = field(repr=False, compare=False)
    effect: str = REFUSES
    error: type[InvalidCallError] = InvalidCallError

    def error_for(self, use: TensorUse) -> InvalidCallError:
        return self.error(f"{use.op}: {self.explain(use)}")

    def explain(self, use: TensorUse) -> str:
        shown = {**vars(use), "dtype": str(use.dtype).removeprefix("torch.")}
        return self.says.format_map(shown)


class Profile:
    """What one backend refuses, asked with `refusal`."""

    def __init__(
        self, name: str, rules: Sequence[ProfileRule], *, ignores_tags: bool = False
    ) -> None:
        self.name = name
        self.rules = tuple(rules)
        self.ignores_tags = ignores_tags

    def refusal(self, use: TensorUse) -> ProfileRule | None:
        """The first rule that the use breaks, None if the backend does it."""
        return next((rule for rule in self.rules if rule.applies(use)), None)

    def on(self, device: str) -> Profile:
        """The rules for tensors on a kind of device."""
        return self

    def __repr__(self) -> str:
        return f"<profile {self.name}>"


class ProfileByDevice(Profile):
    """A backend for each kind of device, as in `cpu:gloo,cuda:nccl`."""

    def __init__(self, name: str, parts: Mapping[str, Profile]) -> None:
        rules = [rule for part in parts.values() for rule in part.rules]
        super().__init__(name, (*dict.fromkeys(rules), NO_BACKEND))
        self._parts = dict(parts)
        self._nothing = Profile(name, (NO_BACKEND,))

    def refusal(self, use: TensorUse) -> ProfileRule | None:
        return self.on(use.device).refusal(use)

    def on(self, device: str) -> Profile:
        return self._parts.get(device, self._nothing)


NO_BACKEND = ProfileRule(
    "no-backend-for-device",
    "this group has no backend for {device} tensors; move them with .to(), or name one, e.g. "
    "init_process_group('cpu:gloo,cuda:nccl')",
    "torch 2.13, ProcessGroup.hpp: getBackend(deviceType); measured with torch 2.11",
    lambda use: True,
)


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one piece of memory, in whatever order."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return not tensor.numel()
        step *= size
    return True


def is_channels_last(tensor: Tensor) -> bool:
    if tensor.dim() == 4:
        return tensor.is_contiguous(memory_format=torch.channels_last)
    if tensor.dim() == 5:
        return tensor.is_contiguous(memory_format=torch.channels_last_3d)
    return False


def _repeats(tensor: Tensor) -> bool:
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return any(not stride and size > 1 for stride, size in pairs)
