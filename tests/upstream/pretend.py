"""Let the tests of the suite that ask for GPUs run with CPU tensors. Used by `suite.py`.

Most of them test DDP and its relatives, and only their set-up mentions a GPU. The suite is told
that there are enough; whatever then names a device gets the CPU instead. torch itself keeps
seeing that there is no GPU: only the suite's own view of `torch` is replaced, plus DDP's
`device_ids`, which a model on the CPU must not have. A test that is about GPUs (streams,
memory, the text of an error that names a device) fails under this on real Gloo too.
"""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

DEVICES = 8


class _View(types.ModuleType):
    """A module with some names replaced."""

    def __init__(self, module: types.ModuleType, **replaced: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


_cuda = _View(
    torch.cuda,
    is_available=lambda: True,
    device_count=lambda: DEVICES,
    current_device=lambda: dist.get_rank(),
    set_device=_nothing,
    synchronize=_nothing,
    manual_seed=_nothing,
    device=nullcontext,
)
TORCH = _View(torch, cuda=_cuda)
"""What the suite and its decorators see as `torch`."""


class CpuForGpu(TorchFunctionMode):
    """Every device that a call names becomes the CPU. A mode belongs to its thread."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = _cpu_if_gpu(kwargs["device"])
        if func is torch.Tensor.to:
            args = (args[0], *map(_cpu_if_gpu, args[1:]))
        return func(*args, **kwargs)


def _cpu_if_gpu(device: Any) -> Any:
    is_number = isinstance(device, int) and not isinstance(device, bool)
    is_name = isinstance(device, str) and device.startswith("cuda")
    if is_number or is_name or (isinstance(device, torch.device) and device.type == "cuda"):
        return torch.device("cpu")
    return device


def pretend_gpus(*modules: Any) -> None:
    """From now on the given modules of torch's test code see GPUs, and DDP hears of none."""
    init = DistributedDataParallel.__init__

    def init_on_cpu(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **more: Any
    ) -> None:
        init(self, module, **more)

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = {name: _cpu_if_gpu(value) for name, value in kwargs.items()}
        return to(self, *map(_cpu_if_gpu, args), **kwargs)

    to = torch.nn.Module.to
    torch.nn.Module.to = move  # type: ignore[assignment,method-assign]
    DistributedDataParallel.__init__ = init_on_cpu  # type: ignore[method-assign]
    for module in modules:
        module.torch = TORCH
        module.TEST_CUDA = True


def asks_for_gpus(test: Any, *gates: Any) -> bool:
    """Whether one of the given decorators is around a test."""
    codes = [gate(_nothing).__code__ for gate in gates]
    while test is not None:
        if test.__code__ in codes:
            return True
        test = getattr(test, "__wrapped__", None)
    return False
