"""Whether the backend that the program asked for would take a call.

Every process group holds one `Admission` and asks it before a call meets the others; what the
backend refuses, or would answer with wrong data, is an error at the caller. What has passed
once is remembered, so that the usual call costs one look into a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from phalanx.backend.collectives.reduction import NAMES
from phalanx.backend.profiles import Profile, TensorUse, profile_of
from phalanx.backend.profiles.profile_rules import CPU, CUDA, INPUT, OUTPUT
from phalanx.backend.torch_private import private

_passed: dict[str, set[Any]] = {}
"""What has passed in other groups of the same description: rules look at nothing else of a
group, and tests make many that are used for a call or two."""


class Admission:
    """The rules of one group. `config` gives torch's description of its backends, such as
    "cpu:gloo,cuda:nccl", or None as long as the group is being made. `second` is asked about
    what passed: whether it has nothing against it either (a profile, which only takes notes).
    """

    def __init__(
        self,
        backend_name: str,
        config: Callable[[], str | None],
        second: Callable[[TensorUse, Tensor, str | None], bool] | None = None,
    ) -> None:
        self._name = backend_name
        self._config = config
        self._second = second
        self._profile: Profile | None = None
        self._known = False
        self.passed: set[Any] = set()
        """(op, part, reduce op, dtype, on the CPU) of ordinary tensors that passed."""
        self._elsewhere: set[Any] = set()

    def profile(self, device: str) -> Profile | None:
        """The rules for tensors on a kind of device; None where none are written down."""
        if not self._known:
            config = self._config()
            self._known = config is not None
            self._profile = profile_of(config or self._name)
            if config is not None:
                self._config = partial(str, config)  # the group is not needed any more
                known_as = config if self._second is None else f"{config} and a profile"
                self._elsewhere = _passed.setdefault(known_as, set())
        return self._profile.on(device) if self._profile else None

    def check(
        self, op: str, tensor: Tensor, code: int | None = None, part: str = INPUT, **more: Any
    ) -> None:
        """Raise if the backend does not take this tensor here. `code` is the reduce op."""
        key = (op, part, code, tensor.dtype, tensor.is_cpu)
        usual = not (more or tensor.requires_grad) and is_plain(tensor)
        if usual and key in self.passed:
            return
        profile = self.profile(tensor.device.type)
        if profile is None or tensor.is_meta:  # torch itself does nothing with meta tensors
            return
        if usual and key in self._elsewhere and is_no_corner_case(tensor):
            self.passed.add(key)
            return
        reduce_op = None if code is None else NAMES[code]
        use = TensorUse.of(op, tensor, reduce_op=reduce_op, part=part, **more)
        if use.grad and private.is_below_autograd():
            use = TensorUse.of(op, tensor.detach(), reduce_op=reduce_op, part=part, **more)
        rule = profile.refusal(use)
        if rule is not None:
            raise rule.error_for(use)
        if self._second is not None and not self._second(use, tensor, self._config()):
            return
        if self._known and is_ordinary(use):
            self.passed.add(key)
            self._elsewhere.add(key)

    def check_outputs(
        self, op: str, tensors: Iterable[Tensor], code: int | None = None
    ) -> None:
        """The same for what is written. Tensors that lie in memory as usual and have no
        gradients are taken by everyone who takes the inputs."""
        for tensor in tensors:
            if tensor.requires_grad or not is_plain(tensor):
                self.check(op, tensor, code, OUTPUT)

    def ignores_tags(self, tensor: Tensor) -> bool:
        profile = self.profile(CPU if tensor.is_cpu else CUDA)
        return profile is not None and profile.ignores_tags

    def is_gloo(self, tensor: Tensor) -> bool:
        """Whether shapes must fit as Gloo wants them."""
        profile = self.profile(CPU if tensor.is_cpu else CUDA)
        return profile is not None and profile.name == "gloo"


def is_ordinary(use: TensorUse) -> bool:
    """Whether others of the same dtype pass where this one did."""
    plain = use.layout == "strided" and use.contiguous
    return plain and not (use.empty or use.zero_dim or use.grad)


def is_no_corner_case(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.dim() > 0 and tensor.numel() > 0


def is_plain(tensor: Tensor) -> bool:
    """Whether it lies in memory as usual: in one piece, in the usual order."""
    try:
        return tensor.is_contiguous()
    except RuntimeError:  # torch does not answer for compressed tensors
        return False
