"""Backends with which nothing works: one cannot be made, one raises always, one hangs, one
dies."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist

_ProcessGroup: Any = dist.ProcessGroup


class _Group(_ProcessGroup):
    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._name = ""

    def getBackendName(self) -> str:  # noqa: N802, the name C++ looks for
        return "bad"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def barrier(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("cannot do anything")

    broadcast = allreduce = allgather = barrier


class _Hanging(_Group):
    def broadcast(self, *_: Any, **__: Any) -> Any:
        time.sleep(600)

    allreduce = broadcast


class _Dying(_Group):
    def broadcast(self, *_: Any, **__: Any) -> Any:
        os.abort()


def _unmade(store: Any, rank: int, size: int, timeout: Any) -> Any:
    raise RuntimeError("no such device")


def _raising(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return _Group(rank, size)


def _hanging(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return _Hanging(rank, size)


def _dying(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return _Dying(rank, size)


for _name, _make in (
    ("unmade", _unmade),
    ("raising", _raising),
    ("hanging", _hanging),
    ("dying", _dying),
):
    if _name not in dist.Backend.backend_list:
        dist.Backend.register_backend(_name, _make, devices=["cpu"])
