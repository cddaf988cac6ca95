"""Settings of torch that a process has once. Used by `switcher.py`."""

from __future__ import annotations

import os
from typing import Any

import torch


def get_settings() -> tuple[Any, ...]:
    """What ranks share with the process, and must not leave changed behind."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        _folder(),
    )


def set_settings(before: tuple[Any, ...]) -> None:
    now = get_settings()
    if now == before:
        return
    dtype, deterministic, warn_only, precision, anomaly, check_nan, folder = before
    if now[:5] != before[:5] or now[5] != check_nan:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_float32_matmul_precision(precision)
        torch.autograd.set_detect_anomaly(anomaly, check_nan)
    if now[-1] != folder and folder is not None:
        os.chdir(folder)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody removed it
        return None
