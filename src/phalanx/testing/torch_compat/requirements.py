"""What a test requires of torch and the machine, decided before any rank starts.

Decorators under torch's names for tests and classes, and the questions behind them. What can
only be decided inside a rank is in `skips.py`.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.testing.torch_compat.skips import TEST_SKIPS, accelerator_count

Decorator = Callable[[Any], Any]

ACCELERATOR_DIST_BACKENDS = ["nccl", "xccl", "hccl"]
DDP_RANK_DEVICES = ["cuda", "xpu"]
HAS_ACCELERATOR = accelerator_count() > 0

SYMMETRIC_MEMORY_ROCM = ("gfx942", "gfx950")


class DistTestCases:
    """Which backends lack a collective, and which have a feature; suites add their own."""

    skip_collective: dict[str, set[str]] = {  # noqa: RUF012
        "allgather_coalesced": {"nccl", "mpi", "ucc", "xccl"},
        "reduce": set(),
        "sendrecv anysource": {"nccl", "ucc", "xccl"},
        "cpu barrier": {"nccl", "ucc", "xccl"},
    }
    backend_feature: dict[str, set[str]] = {  # noqa: RUF012
        **{name: {"nccl", "gloo", "ucc"} for name in ("gpu", "cuda", "ddp", "subgroup")},
        "plugin": set(),
        "hpu": {"hccl"},
        "xpu": {"xccl"},
    }


def requires_ddp_rank(device: str) -> bool:
    """Whether DDP takes `device_ids=[rank]` for models on this kind of device."""
    return device in DDP_RANK_DEVICES


def requires_gloo() -> Decorator:
    return _requires_backend("Gloo", dist.is_gloo_available())


def requires_nccl() -> Decorator:
    return _requires_backend("NCCL", dist.is_nccl_available())


def requires_ucc() -> Decorator:
    return _requires_backend("UCC", dist.is_ucc_available())


def requires_mpi() -> Decorator:
    return _requires_backend("MPI", dist.is_mpi_available())


def _requires_backend(name: str, available: bool) -> Decorator:
    return unittest.skipIf(not available, f"torch was built without {name}")


def requires_nccl_version(version: tuple[int, ...], msg: str) -> Decorator:
    """Without CUDA nothing is asked for: such tests skip for another reason."""
    if not torch.cuda.is_available():
        return lambda test: test
    if not dist.is_nccl_available():
        return requires_nccl()
    found: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return unittest.skipIf(
        found < version, f"requires NCCL {_dotted(version)}, found {_dotted(found)}: {msg}"
    )


def requires_nccl_shrink() -> Decorator:
    return requires_nccl_version((2, 27), "shrink_group came with it")


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def requires_accelerator_dist_backend(backends: Sequence[str] | None = None) -> Decorator:
    """Skip unless torch has one of these backends for accelerators (default: any)."""
    wanted = ACCELERATOR_DIST_BACKENDS if backends is None else list(backends)
    there = {
        "nccl": dist.is_nccl_available(),
        "xccl": dist.is_xccl_available(),
        "hccl": accelerator_count("hpu") > 0,
    }
    return unittest.skipIf(
        not any(there.get(name, False) for name in wanted),
        f"none of these backends is available: {', '.join(wanted)}",
    )


def requires_multicast_support() -> Decorator:
    supported = torch.cuda.is_available() and private.has_multicast_support()
    return unittest.skipIf(not supported, "multicast between GPUs is not supported")


def evaluate_platform_supports_symm_mem() -> bool:
    """Whether symmetric memory works: on CUDA yes, on ROCm for some devices."""
    if not torch.cuda.is_available():
        return False
    return torch.version.hip is None or _rocm_arch() in SYMMETRIC_MEMORY_ROCM


class _Lazily:
    """A truth value that is found out when it is first needed: it may ask the driver."""

    def __init__(self, find: Callable[[], bool]) -> None:
        self._find = functools.cache(find)

    def __bool__(self) -> bool:
        return self._find()


PLATFORM_SUPPORTS_SYMM_MEM = _Lazily(evaluate_platform_supports_symm_mem)


def skip_if_rocm_multiprocess(func: Any) -> Any:
    is_rocm = torch.version.hip is not None
    return unittest.skipIf(is_rocm, TEST_SKIPS["skipIfRocm"].message)(func)


def skip_if_rocm_arch_multiprocess(arch: Sequence[str]) -> Decorator:
    """Skip on these ROCm devices, e.g. ("gfx90a",)."""
    found = _rocm_arch()
    return unittest.skipIf(found is not None and found in arch, f"not for ROCm on {found}")


def skip_if_rocm_ver_lessthan_multiprocess(
    version: Sequence[int] | None = None,
) -> Decorator:
    """Skip on ROCm before this version (None: on every one)."""
    if torch.version.hip is None:
        return lambda test: test
    numbers = torch.version.hip.partition("-")[0].split(".")
    found = tuple(int(number) for number in numbers)
    too_old = version is None or found < tuple(version)
    return unittest.skipIf(too_old, f"not for ROCm {_dotted(found)}: needs {version}")


def _rocm_arch() -> str | None:
    if torch.version.hip is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_properties(0).gcnArchName).partition(":")[0]


def skip_if_win32() -> Decorator:
    return unittest.skipIf(sys.platform == "win32", "not supported on Windows")


def sm_is_or_higher_than(device: torch.device, major: int, minor: int) -> bool:
    """Whether a CUDA device has this compute capability. Other devices have no such limit;
    ROCm's numbers mean something else, so there it is False."""
    if device.type != "cuda":
        return True
    if torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (major, minor)


@functools.cache
def has_efa() -> bool:
    """Whether the machine has Amazon's Elastic Fabric Adapter and its software."""
    try:
        asked = subprocess.run(
            ["fi_info", "-p", "efa", "-t", "FI_EP_RDM"], check=False, capture_output=True
        )
    except FileNotFoundError:
        return False
    return asked.returncode == 0


def tp_transports() -> list[str] | None:
    """The transports for TensorPipe where EFA's InfiniBand verbs would break it, else None."""
    return ["shm", "uv"] if has_efa() else None
