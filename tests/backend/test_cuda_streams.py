"""Streams of several devices in one collective, with devices that are not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.backend.devices import cuda_streams
from phalanx.backend.devices.cuda_streams import StreamPoint
from phalanx.backend.rank_errors import InvalidCallError

Log = list[str]
OWN = 77
"""The number of a stream of the program's own."""


class FakeStream:
    """Notes what it is asked for, in one list for all."""

    def __init__(self, name: str, log: Log) -> None:
        self.name, self.log = name, log

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return f"{self.name} so far"


@pytest.fixture
def current() -> dict[int, int]:
    """The current stream of each device."""
    return {}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, current: dict[int, int]) -> Log:
    notes: Log = []

    def raw(index: int) -> int:
        return current.get(index, 0)

    def stream(index: int) -> FakeStream:
        return FakeStream(f"gpu {index} stream {raw(index)}", notes)

    def external(number: int, device: int) -> FakeStream:
        return FakeStream(f"gpu {device} stream {number}", notes)

    monkeypatch.setattr(cuda_streams, "current_raw_stream", raw)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(
        torch.cuda, "default_stream", lambda index: FakeStream(f"gpu {index} stream 0", notes)
    )
    monkeypatch.setattr(torch.cuda, "ExternalStream", external)
    return notes


def call(point: StreamPoint | None, *parts: Any) -> Any:
    device = None if point is None else point.device
    return SimpleNamespace(device=device, point=point, parts=parts, asynchronous=True)


def move(calls: list[Any], log: Log) -> None:
    cuda_streams.run_in_order(calls, lambda: log.append("move"))


def test_ranks_on_one_stream_wait_for_nothing(log) -> None:
    calls = [call(StreamPoint(0, 0)) for _ in range(4)]
    move(calls, log)
    for each in calls:
        cuda_streams.wait_for_point(each)
    assert log == ["move"]


def test_a_call_that_has_waited_needs_no_point(log) -> None:
    calls = [call(StreamPoint(0, 0)) for _ in range(2)]
    calls[0].asynchronous = False
    move(calls, log)
    assert calls[0].point is None
    assert calls[1].point is not None


def test_data_moves_after_other_streams_and_before_they_go_on(log, current) -> None:
    calls = [call(StreamPoint(0, 0)), call(StreamPoint(0, OWN, "rank 1"))]
    move(calls, log)
    assert log == [
        "gpu 0 stream 0 waits for rank 1",
        "move",
        "gpu 0 stream 0 records",
    ]
    log.clear()
    cuda_streams.wait_for_point(calls[0])
    assert log == []
    current[0] = OWN
    cuda_streams.wait_for_point(calls[1])
    assert log == [f"gpu 0 stream {OWN} waits for gpu 0 stream 0 so far"]


def test_an_event_that_nobody_recorded_is_recorded_when_it_is_needed(log, current) -> None:
    calls = [call(StreamPoint(0, 0)), call(StreamPoint(0, 0))]
    current[0] = OWN
    move(calls, log)
    assert log == [
        "gpu 0 stream 0 records",
        f"gpu 0 stream {OWN} waits for gpu 0 stream 0 so far",
        "gpu 0 stream 0 records",
        f"gpu 0 stream {OWN} waits for gpu 0 stream 0 so far",
        "move",
        f"gpu 0 stream {OWN} records",
    ]


def test_a_work_may_be_waited_for_on_another_stream(log, current) -> None:
    calls = [call(StreamPoint(0, OWN))]
    current[0] = OWN
    move(calls, log)
    current[0] = 0
    cuda_streams.wait_for_point(calls[0])
    assert log == [
        "move",
        f"gpu 0 stream {OWN} records",
        f"gpu 0 stream 0 waits for gpu 0 stream {OWN} so far",
    ]


def test_data_between_devices_moves_on_the_streams_of_both(log) -> None:
    calls = [call(StreamPoint(1, 0)), call(StreamPoint(0, 0)), call(None)]
    move(calls, log)
    assert log == [
        "gpu 0 stream 0 records",
        "gpu 1 stream 0 waits for gpu 0 stream 0 so far",
        "gpu 1 stream 0 records",
        "gpu 0 stream 0 waits for gpu 1 stream 0 so far",
        "move",
        "gpu 1 stream 0 records",
        "gpu 0 stream 0 records",
    ]
    assert [each.point.device for each in calls] == [1, 0, 1]


def test_a_batch_waits_for_all_its_parts(log, current) -> None:
    parts = [call(StreamPoint(0, 0, "one")), call(StreamPoint(0, OWN, "two")), call(None)]
    whole = call(parts[1].point, *parts)
    cuda_streams.wait_for_point(whole)
    assert log == ["gpu 0 stream 0 waits for two"]


def test_nothing_waits_without_tensors_on_a_device(log) -> None:
    move([call(None)], log)
    assert log == ["move"]


def arriving(size: int) -> Any:
    strand = SimpleNamespace(baton=SimpleNamespace(affinity=SimpleNamespace()))
    mailbox = SimpleNamespace(size=size)
    return SimpleNamespace(name="all_reduce", mailbox=mailbox, strand=strand, point=None)


TENSOR: Any = SimpleNamespace(get_device=lambda: 0)


def test_a_stream_of_the_programs_own_is_marked_at_once(log, current, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    cuda_streams.record_arrival(arriving(2), TENSOR)
    assert log == []
    current[0] = OWN
    cuda_streams.record_arrival(arriving(2), TENSOR)
    assert log == [f"gpu 0 stream {OWN} records"]


def test_a_collective_in_a_captured_graph_is_refused(log, current, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    current[0] = OWN
    with pytest.raises(InvalidCallError, match=r"all_reduce: .* capturing a CUDA graph"):
        cuda_streams.record_arrival(arriving(2), TENSOR)
    cuda_streams.record_arrival(arriving(1), TENSOR)
    assert log == []
