"""Streams: a collective on CUDA tensors must see what its ranks have launched before.

Ranks share the devices, and each has its own current stream. A call records an event where
its rank stands; whoever completes the collective waits for all of them, moves the data on
its own stream and records one more, which each rank's stream waits for in turn. Used by the
process group and by `Work`; for CPU tensors nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from phalanx.matching.slots import Call


def default_backend() -> str:
    """For a group that nobody asked a backend for. torch takes NCCL alone where there are
    GPUs, so a test with CPU tensors would pass on a laptop and fail there; and elsewhere a
    group by device that calls itself "undefined" and has no `monitored_barrier`."""
    if torch.cuda.is_available() and dist.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def record_arrival(call: Call, tensor: torch.Tensor) -> None:
    call.device = tensor.device.index
    call.event = torch.cuda.current_stream(tensor.device).record_event()


def run_in_order(calls: list[Call], move: Callable[[], None]) -> None:
    """Move the data after everything the callers launched, before everything they will. Data
    moves on the stream of the device where it lies, and between two devices on both."""
    events = [call.event for call in calls if call.event is not None]
    if not events:
        move()
        return
    indices = list({call.device: None for call in calls if call.event is not None})
    streams = [torch.cuda.current_stream(index) for index in indices]
    for stream in streams:
        for event in events:
            stream.wait_event(event)
    move()
    done: dict[int | None, torch.cuda.Event] = {
        i: stream.record_event() for i, stream in zip(indices, streams, strict=True)
    }
    for call in calls:
        call.event = done.get(call.device, done[indices[0]])


def wait_for_event(call: Call) -> None:
    torch.cuda.current_stream(call.device).wait_event(call.event)
