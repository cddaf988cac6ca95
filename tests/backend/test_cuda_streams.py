"""Streams of several devices in one collective, with devices that are not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.backend.collectives.reduction import SUM, Reduction
from phalanx.backend.devices import cuda_streams


class FakeStream:
    """Notes what it is asked for, in one list for all."""

    def __init__(self, index: int, log: list[tuple[str, Any]]) -> None:
        self.index, self.log = index, log

    def wait_event(self, event: str) -> None:
        self.log.append((f"stream {self.index} waits", event))

    def record_event(self) -> str:
        self.log.append((f"stream {self.index} records", None))
        return f"done {self.index}"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    notes: list[tuple[str, Any]] = []

    def current_stream(index: int) -> FakeStream:
        return FakeStream(index, notes)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    return notes


def call(index: int | None, event: str | None) -> Any:
    return SimpleNamespace(device=index, event=event)


def test_data_moves_after_what_was_launched_on_every_device(log) -> None:
    calls = [call(1, "a"), call(0, "b"), call(1, "c"), call(None, None)]
    cuda_streams.run_in_order(calls, lambda: log.append(("move", None)))
    waits = [(f"stream {i} waits", event) for i in (1, 0) for event in "abc"]
    ends = [("stream 1 records", None), ("stream 0 records", None)]
    assert log == [*waits, ("move", None), *ends]
    assert [c.event for c in calls] == ["done 1", "done 0", "done 1", "done 1"]


def test_a_rank_waits_on_the_device_of_its_tensor(log) -> None:
    cuda_streams.wait_for_event(call(1, "done"))
    assert log == [("stream 1 waits", "done")]


def test_nothing_waits_without_tensors_on_a_device(log) -> None:
    cuda_streams.run_in_order([call(None, None)], lambda: log.append(("move", None)))
    assert log == [("move", None)]


def test_tensors_of_several_devices_are_added_on_the_first() -> None:
    reduction, added = Reduction(SUM, 2), []
    reduction._fold = lambda total, tensor: added.append((total.device, tensor.device))
    reduction._accumulate(torch.ones(2, device="meta"), [torch.ones(2)])
    assert added == [(torch.device("meta"), torch.device("meta"))]
