"""Thread pools of threads for ranks. Used by the doors for tests, which run many small
worlds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from functools import partial
from typing import Any

import torch

from phalanx.backend.torch_private import private, private_modes
from phalanx.core.thread_pool import RankThreadPool


def make_thread_pool() -> RankThreadPool:
    """Give it to every `ThreadsEngine`, and close it in the end."""
    return RankThreadPool(
        _state_of_thread, partial(torch.set_flush_denormal, _flushes_denormal())
    )


def _flushes_denormal() -> bool:
    """Whether `torch.set_flush_denormal` is in force here, which torch does not tell. Threads
    inherit it."""
    return _smallest / 2 == 0.0


_smallest = sys.float_info.min


def _state_of_thread() -> Hashable:
    """What torch and Python keep per thread, and a program may leave behind."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        _flushes_denormal(),
        torch.get_num_threads(),
        private.function_modes(),
        private.dispatch_modes(),
        private_modes.sees_torch_functions(),
        private_modes.hooks_of_saved_tensors(False),
        sys.gettrace(),
        sys.getprofile(),
        (thread := threading.current_thread()).name,
        len(vars(thread)),
        _place() if _cuda.is_initialized() else (0, 0),
    )


def _place() -> tuple[int, int]:
    """The current GPU, and the current stream there: a new thread begins with the first of
    each."""
    return _cuda.current_device(), _cuda.current_stream().cuda_stream


_cuda: Any = torch.cuda
