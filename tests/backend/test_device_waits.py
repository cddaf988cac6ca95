"""`torch.cuda.synchronize` in place of `wait`, with a device that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.devices import device_waits


def nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for torch's functions, which need a device."""


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors count as being on one; before a world opens and wraps these."""
    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", nothing)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", nothing)
    monkeypatch.setattr(device_waits, "is_on_device", lambda call: True)


def device() -> None:
    torch.cuda.synchronize()


def stream() -> None:
    torch.cuda.Stream.synchronize(None)  # type: ignore[arg-type]


def event() -> None:
    torch.cuda.Event.synchronize(None)  # type: ignore[arg-type]


def reduce_and(synchronize: Callable[[], None], *, meet: bool = True) -> float:
    tensor = torch.ones(2)
    works = [dist.all_reduce(tensor, async_op=True)]
    if meet:
        dist.barrier()
    synchronize()
    total = tensor.sum().item()
    del works
    return total


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("synchronize", [device, stream, event])
def test_what_the_device_has_done_may_be_used(synchronize) -> None:
    assert phalanx.run(reduce_and, synchronize, ranks=2, strict=True) == [4.0, 4.0]


@pytest.mark.usefixtures("on_device")
def test_a_device_waits_for_the_other_ranks() -> None:
    assert phalanx.run(reduce_and, device, ranks=2, strict=True, meet=False) == [4.0, 4.0]


def test_tensors_of_the_cpu_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    with pytest.raises(phalanx.InFlightBufferError):
        phalanx.run(reduce_and, device, ranks=2)
    assert torch.cuda.synchronize is nothing


def test_another_view_of_the_memory_is_no_read() -> None:
    pytest.importorskip("numpy")

    def body() -> float:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        raw = tensor.numpy()
        assert work is not None
        work.wait()
        return float(raw.sum())

    assert phalanx.run(body, ranks=2, strict=True) == [4.0, 4.0]
