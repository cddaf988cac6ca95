"""torch's settings for a whole process: how to read and write each, and which functions change
it.

The functions are private (`torch._C`). The public ones call them, some by name at the moment of
the call and some by a reference taken at import. Settings that a version or build does not have
are left out. Checked with torch 2.11 (CUDA) and 2.13 (CPU). Used by
`emulation/state/rank_settings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.backends
import torch.hub

_C: Any = torch._C
_torch: Any = torch
_tensor_str: Any = torch._tensor_str


class TorchSetting(NamedTuple):
    """`write(read())` changes nothing; `writers` are the names by which programs change it."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    writers: tuple[tuple[Any, str], ...]


# 2.11-2.13: flags with a pair of functions, `_get_x` and `_set_x`, that programs change for a
# moment, or differently from rank to rank.
PAIRS = (
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_enabled",
    "mkldnn_deterministic",
    "mkldnn_enabled",
    "sdp_priority_order",
)

# 2.11-2.13: likewise, but set once and alike: ranks share them, and they are put back.
SHARED_PAIRS = (
    "blas_preferred_backend",
    "cpu_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation",
    "cublas_allow_fp16_reduced_precision_reduction",
    "cudnn_depthwise_kernel",
    "deterministic_fill_uninitialized_memory",
    "linalg_preferred_backend",
    "math_sdp_allow_fp16_bf16_reduction",
    "nnpack_enabled",
    "qengine",
    "warnAlways",
)

# 2.11-2.13: the same under names that do not match.
ODD_PAIRS = {
    "_set_sdp_use_flash": "_get_flash_sdp_enabled",
    "_set_sdp_use_mem_efficient": "_get_mem_efficient_sdp_enabled",
    "_set_sdp_use_math": "_get_math_sdp_enabled",
    "_set_sdp_use_cudnn": "_get_cudnn_sdp_enabled",
    "_set_sdp_use_overrideable": "_get_overrideable_sdp_enabled",
}

# 2.11-2.13: how exact float32 arithmetic is: one table behind several older functions.
PRECISIONS = (
    ("generic", "all"),
    *((device, op) for device in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)
OLDER_PRECISIONS = (
    ("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
    ("_get_float32_matmul_precision", "_set_float32_matmul_precision"),
)
ALSO_PRECISION = (
    "_set_fp32_precision_setter",
    "_set_cublas_allow_tf32",
    "_set_onednn_allow_tf32",
)


def torch_settings() -> Iterator[TorchSetting]:
    """All settings that this version has."""
    named = [(f"_get_{name}", f"_set_{name}") for name in PAIRS]
    named += [(read, write) for write, read in ODD_PAIRS.items()]
    for read, write in named:
        if hasattr(_C, read) and hasattr(_C, write):
            yield TorchSetting(getattr(_C, read), _spread(getattr(_C, write)), ((_C, write),))
    yield TorchSetting(
        torch.get_default_dtype,
        _C._set_default_dtype,
        ((_C, "_set_default_dtype"), (_C, "_set_default_tensor_type")),
    )
    yield TorchSetting(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _writer(_C._set_deterministic_algorithms, "warn_only"),
        ((_C, "_set_deterministic_algorithms"),),
    )
    yield TorchSetting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        _writer(_torch.set_anomaly_enabled, "check_nan"),
        ((_torch, "set_anomaly_enabled"),),
    )
    if hasattr(_C, "_get_fp32_precision_getter"):
        writers = (*ALSO_PRECISION, *(write for _, write in OLDER_PRECISIONS))
        names = tuple((_C, name) for name in writers if hasattr(_C, name))
        yield TorchSetting(_precisions, _writer_of_precisions(), names)


def shared_settings() -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How to read and to write those that ranks share; as many as this version has."""
    names = [(f"_get_{name}", f"_set_{name}") for name in SHARED_PAIRS]
    found = [
        (getattr(_C, read), _spread(getattr(_C, write)))
        for read, write in names
        if hasattr(_C, read) and hasattr(_C, write)
    ]
    hub: Any = torch.hub
    return [
        *found,
        (lambda: dict(vars(_tensor_str.PRINT_OPTS)), vars(_tensor_str.PRINT_OPTS).update),
        (lambda: hub._hub_dir, partial(setattr, hub, "_hub_dir")),
    ]


def _spread(function: Any) -> Callable[[Any], Any]:
    """Some are pairs."""
    return lambda value: function(*value) if isinstance(value, tuple) else function(value)


def _writer(function: Any, second: str) -> Callable[[tuple[Any, Any]], Any]:
    return lambda values: function(values[0], **{second: values[1]})


def _precisions() -> tuple[Any, ...]:
    older: list[Any] = []
    for read, _ in OLDER_PRECISIONS:
        try:
            older.append(getattr(_C, read)())
        except RuntimeError:  # newer and older functions disagree, and torch does not answer
            older.append(None)
    return (*older, *(_C._get_fp32_precision_getter(*place) for place in PRECISIONS))


def _writer_of_precisions() -> Callable[[tuple[Any, ...]], None]:
    """The older functions write into the table as well, so they come first."""
    older = [getattr(_C, write) for _, write in OLDER_PRECISIONS]
    write_place = _C._set_fp32_precision_setter

    def write(values: tuple[Any, ...]) -> None:
        if values == _precisions():
            return
        for function, value in zip(older, values, strict=False):
            if value is not None:
                with suppress(RuntimeError):
                    function(value)
        for place, value in zip(PRECISIONS, values[len(older) :], strict=True):
            if _C._get_fp32_precision_getter(*place) != value:
                write_place(*place, value)

    return write


# 2.11-2.13: the class behind flags like `torch.backends.cudnn.benchmark`. Each flag holds on to
# the function that writes it, so to see writing one has to come in here.
flag_class: Any = torch.backends.ContextProp
FLAG_SETTER = "setter"
