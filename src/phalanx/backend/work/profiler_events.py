"""The profiler, for ranks: events under the backend's names, and Kineto shared by all of them.

Kineto, which all of torch's profilers use, serves one of them at a time and takes the process
down when a second one stops. What a profiler records of operations is kept per thread, though;
only starting and stopping collide. So Kineto is started again, by a thread made for that, as
long as any other profiler is still open.

`Endpoint` calls `begin` and `end` around each operation of a rank that is being profiled.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, record_function

from phalanx.backend.session import context_here
from phalanx.backend.torch_private import private
from phalanx.core.strand import here
from phalanx.matching.slots import Call

USER_SCOPE = 7
"""torch's number for events that are no operators; that is what Gloo's are."""

GLOO_TITLES = {
    "all_reduce_coalesced": "all_reduce",
    "all_gather_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "all_reduce",
    "reduce_scatter_tensor": "all_reduce",
    "reduce_scatter_tensor_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
}
"""Where Gloo's title is not the name of the operation. Measured with torch 2.13: it carries
some out by others, and its events say so."""

NCCL_TITLES = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "barrier": "all_reduce_barrier",
}
"""The same for NCCL, as torch's ProcessGroupNCCL.cpp has them."""

_titles: set[str] = set()


class _Open(threading.local):
    """What the calling thread has begun and not ended: the profiler, and ranges in it; and
    what it has prepared (settings, activities)."""

    def __init__(self) -> None:
        self.profiler = False
        self.prepared: tuple[Any, Any] | None = None
        self.ranges: dict[Call, list[Any]] = {}


_open = _Open()


def begin(call: Call, backend: str) -> None:
    """Open the events of an op. They end where its own rank sees that it is complete."""
    ranges = []
    named = private.comm_profiling_name()
    for title, tensors in _events(call, backend, named):
        _titles.add(title)
        profiled = private.is_profiling()  # a trace alone does not see this kind
        opened = private.ProfilerRange(title, tensors) if profiled else record_function(title)
        opened.__enter__()
        ranges.append(opened)
    _open.ranges[call] = ranges


def end(call: Call) -> None:
    """Nothing if the op was begun by another thread, or before the profiler."""
    for opened in _open.ranges.pop(call, ()):
        opened.__exit__(None, None, None)


def _events(call: Call, backend: str, named: str | None) -> list[tuple[str, list[Any]]]:
    """Titles and tensors; `named` is what `record_comm` calls them besides."""
    if call.name == "monitored_barrier":
        return []
    if named is not None:
        events = _events(call, backend, None)
        return [(named, events[0][1]), *events]
    tensors: list[Any] = list(call.inputs or (call.outputs if call.name == "recv" else ()))
    name = call.name
    if backend == "nccl":
        if name == "send":
            name = f"send {call.member}->{call.peer}"
        elif name == "recv":
            name = f"recv {call.member}<-{call.peer}"
        return [(f"nccl:{NCCL_TITLES.get(name, name)}", tensors)]
    if name == "recv" and call.peer is None:
        name = "recvAnySource"
    title = f"gloo:{GLOO_TITLES.get(name, name)}"
    if name == "reduce_scatter":  # one all_reduce for each piece
        return [(title, [piece]) for piece in tensors[0]]
    return [(title, tensors)]


# -- Kineto ---------------------------------------------------------------------------------

_lock = threading.Lock()
_profilers = 0
_prepared: frozenset[Any] = frozenset()
"""The activities that Kineto is prepared for and has not begun to record."""
NOT_THE_CPU = ProfilerActivity.CUDA
"""To start Kineto alone: on behalf of a thread whose operators are not recorded."""
_last: tuple[Any, Any] = (None, None)


def profiler_patches() -> list[tuple[Any, str, Any]]:
    """Owner, name, replacement: how profilers start and stop Kineto."""
    module = private.profiler_module
    prepare = getattr(module, private.PREPARE_NAME)
    enable = getattr(module, private.ENABLE_NAME)
    disable = getattr(module, private.DISABLE_NAME)
    outer = private.is_profiling()  # by the program that opens the world
    private.recording = outer

    def prepare_shared(config: Any, activities: Any, *args: Any, **kwargs: Any) -> None:
        global _prepared
        with _lock:
            # torch 2.11 does not prepare what is prepared already
            if not _profilers and not outer and not _prepared >= set(activities):
                prepare(config, activities, *args, **kwargs)
                _prepared = frozenset(activities)
                _open.prepared = config, activities

    def enable_shared(config: Any, activities: Any, *args: Any, **kwargs: Any) -> None:
        global _profilers, _last, _prepared
        with _lock:
            if activities and not (_prepared or _profilers or outer):
                prepare(config, activities)  # another one's end undid what this one prepared
            enable(config, activities, *args, **kwargs)
            if activities:  # none: a profiler that does without Kineto
                _prepared = frozenset()
                _profilers += 1
                private.recording = True
                _open.profiler = True
                _last = config, activities

    def disable_shared() -> Any:
        global _profilers
        for call in list(_open.ranges):
            end(call)
        with _lock:
            results = disable()
            if not _open.profiler:
                return results
            _open.profiler = False
            _profilers -= 1
            private.recording = bool(_profilers or outer or private.tracing)
            if _profilers or outer:
                _in_a_thread(lambda: (prepare(*_last), enable(_last[0], {NOT_THE_CPU})))
        context = context_here()
        notes = context.saved.pop("profiler notes", {}) if context is not None else {}
        return Results(results, notes)

    return [
        (module, private.PREPARE_NAME, prepare_shared),
        (module, private.ENABLE_NAME, enable_shared),
        (module, private.DISABLE_NAME, disable_shared),
        (private.autograd_module, private.NOTE_NAME, add_note),
    ]


def leave_thread() -> None:
    """Last thing in a thread of a rank: stop the profiler that it left open, and use up what
    it prepared and nobody began."""
    module = private.profiler_module
    if _profilers and _open.profiler:
        getattr(module, private.DISABLE_NAME)()
    if _prepared and _open.prepared is not None:
        enable, disable = (
            getattr(module, name) for name in (private.ENABLE_NAME, private.DISABLE_NAME)
        )
        prepared = _open.prepared
        _in_a_thread(lambda: (enable(*prepared), disable()))


def _in_a_thread(action: Callable[[], Any]) -> None:
    """What a profiler records belongs to the thread that starts it, and ends with it."""
    thread = threading.Thread(target=action, name="phalanx-kineto")
    outer, here.strand = here.strand, None  # no helper of the rank, which keeps the baton
    try:
        thread.start()
        thread.join()
    finally:
        here.strand = outer


def add_note(key: str, value: str) -> None:
    """Kineto keeps what profilers note in their files (the rank, for one) for all of them;
    each rank's are remembered beside that."""
    context = context_here()
    if context is not None:
        context.saved.setdefault("profiler notes", {})[key] = value
    private.add_profiler_note(key, value)


class Results:
    """What a profiler recorded, where the events of ours look as Gloo's do."""

    def __init__(self, original: Any, notes: dict[str, str] | None = None) -> None:
        self._original = original
        self._notes = notes or {}

    def save(self, path: str) -> None:
        """As a Chrome trace, with the rank's own notes at the top."""
        self._original.save(path)
        if not self._notes:
            return
        text = Path(path).read_text(encoding="utf-8")
        top, events, rest = text.partition('"traceEvents"')
        fields = json.loads(top.rstrip().rstrip(",") + "}")
        fields.update({key: json.loads(value) for key, value in self._notes.items()})
        Path(path).write_text(
            f"{json.dumps(fields, indent=2)[:-2]},\n  {events}{rest}", encoding="utf-8"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def events(self) -> list[Any]:
        return [
            _InBackground(event) if event.name() in _titles else event
            for event in self._original.events()
        ]


class _InBackground:
    """An event that another thread carries out, from the profiler's point of view."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def is_async(self) -> bool:
        return True

    def scope(self) -> int:
        return USER_SCOPE
