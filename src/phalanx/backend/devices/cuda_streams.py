"""Streams: a collective on CUDA tensors must see what its ranks have launched before.

Ranks share the devices, and each has its own current stream. A call remembers where its rank
stands; whoever completes the collective lets its own stream wait for those of the others,
moves the data there, and each rank's stream waits for that in turn. Streams that are one and
the same need no waiting, so usual ranks, which all work on the default stream, never wait. Used
by the process group and by `Work`; for CPU tensors nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from phalanx.backend.rank_errors import InvalidCallError
from phalanx.backend.torch_private.private_devices import current_raw_stream
from phalanx.matching.slots import Call

DEFAULT_STREAM = 0
"""What the driver calls the stream that every thread begins with."""


class StreamPoint:
    """What was launched on a stream of a device up to a moment. An event stands for it. It is
    recorded when another stream asks for it, unless somebody has: then it also stands for what
    was launched meanwhile, and whoever waits for it waits a little longer."""

    __slots__ = ("device", "event", "stream")

    def __init__(self, device: int, stream: int, event: torch.cuda.Event | None = None) -> None:
        self.device = device
        self.stream = stream
        self.event = event

    def let_wait(self, index: int) -> None:
        """The current stream of device `index` goes on when this point is reached."""
        if index == self.device and current_raw_stream(index) == self.stream:
            return
        if self.event is None:
            self.event = _stream_of(self).record_event()
        torch.cuda.current_stream(index).wait_event(self.event)


def default_backend() -> str:
    """For a group that nobody asked a backend for. torch takes NCCL alone where there are
    GPUs, so a test with CPU tensors would pass on a laptop and fail there; and elsewhere a
    group by device that calls itself "undefined" and has no `monitored_barrier`."""
    if torch.cuda.is_available() and dist.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def record_arrival(call: Call, tensor: torch.Tensor) -> None:
    """A stream of the program's own may go on to other things before the collective completes,
    so its event is recorded at once."""
    call.strand.baton.affinity.on_devices = True
    index = call.device = tensor.get_device()
    stream = current_raw_stream(index)
    event = None
    if stream != DEFAULT_STREAM and call.mailbox.size > 1:
        if torch.cuda.is_current_stream_capturing():
            raise InvalidCallError(_CAPTURED.format(call.name))
        event = torch.cuda.current_stream(index).record_event()
    call.point = StreamPoint(index, stream, event)


_CAPTURED = (
    "{}: this rank is capturing a CUDA graph, and a collective of ranks that share a process "
    "cannot be part of one: in a replay the graphs of all ranks would have to wait for each "
    "other half-way. Call it outside torch.cuda.graph, or take engine='processes' with a GPU "
    "for each rank"
)


def run_in_order(calls: list[Call], move: Callable[[], None]) -> None:
    """Move the data after everything the callers launched, before everything they will. Data
    moves on the stream of the device where it lies, and between two devices on both."""
    points = [call.point for call in calls if call.point is not None]
    if not points:
        move()
        return
    index = points[0].device
    stream = current_raw_stream(index)
    for point in points:
        if point.device != index or point.stream != stream:
            break
    else:  # the usual case: nobody has to wait, but who waits later on another stream
        move()
        reached = StreamPoint(index, stream)
        for call in calls:
            call.point = reached if call.asynchronous else None
        return
    done = {
        index: StreamPoint(index, current_raw_stream(index))
        for index in {point.device: None for point in points}
    }
    strange = [p for p in points if p.stream != done[p.device].stream or len(done) > 1]
    for index in done if strange else ():
        for point in strange:
            point.let_wait(index)
    move()
    for point in done.values() if strange else ():
        point.event = torch.cuda.current_stream(point.device).record_event()
    first = done[points[0].device]
    for call in calls:
        call.point = first if call.point is None else done[call.point.device]


def wait_for_point(call: Call) -> None:
    """The stream of the calling thread goes on when the call's data, or that of all its parts,
    has moved."""
    for each in call.parts or (call,):
        if each.point is not None:
            each.point.let_wait(each.point.device if call.device is None else call.device)


def _stream_of(point: StreamPoint) -> torch.cuda.Stream:
    if point.stream == DEFAULT_STREAM:
        return torch.cuda.default_stream(point.device)
    made: Any = torch.cuda.ExternalStream
    found: torch.cuda.Stream = made(point.stream, device=point.device)
    return found
