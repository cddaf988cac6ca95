"""Threads that are kept for the ranks of several worlds.

Used by the pytest plugin and the test classes, which run many small worlds.
"""

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
    """A pool to give to every `ThreadsEngine`. The caller closes it."""
    return RankThreadPool(
        _state_of_thread, partial(torch.set_flush_denormal, _flushes_denormal())
    )


def _flushes_denormal() -> bool:
    """Whether `torch.set_flush_denormal` is on in this thread, which torch has no function to
    tell. New threads inherit it."""
    return _smallest / 2 == 0.0


_smallest = sys.float_info.min


def _state_of_thread() -> Hashable:
    """What torch and Python keep for each thread and a program may have changed. A thread in
    which it differs from that of a new one is not used again."""
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
    """The current GPU and the current stream, which are the first ones in a new thread."""
    return _cuda.current_device(), _cuda.current_stream().cuda_stream


_cuda: Any = torch.cuda
