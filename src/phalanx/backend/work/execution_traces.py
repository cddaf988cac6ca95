"""Execution traces, for ranks: each gets the file it asked for, with what it did itself.

torch has one `ExecutionTraceObserver` per process, which records all threads, and must not be
taken away while any of them is inside an operator. So the ranks share one, which stays until
the last world closes and writes to a temporary file. What belongs to a rank is found in there
by its thread, between marks that the rank leaves when its own observer starts and stops.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from torch.profiler import ExecutionTraceObserver, record_function

from phalanx.backend.session import RankContext, context_here
from phalanx.backend.torch_private import private

ROOT = "[pytorch|profiler|execution_trace|process]"
THREAD = "[pytorch|profiler|execution_trace|thread]"
MARK = "phalanx trace"
PADDING = "." * 4096
"""Nodes are written through a buffer; marks this long push out what is before them."""


class _Trace:
    """One rank's observer: where it wants its file, and its marks in the common one."""

    def __init__(self, path: str, number: int, offset: int) -> None:
        self.path = path
        self.offset = offset
        self.running = False
        self.begins = f"{MARK} {number} begins"
        self.ends = f"{MARK} {number} ends"
        self.last = f"{MARK} {number} is over"


class SharedObserver:
    """torch's observer on behalf of the ranks; threads of no rank pass through."""

    def __init__(self) -> None:
        self._real = private.trace_observer_functions()
        self._register = ExecutionTraceObserver.register_callback
        self._observers: dict[RankContext, list[Any]] = {}
        self._lock = threading.RLock()
        self._traces: dict[RankContext, _Trace] = {}
        self._made = 0
        self._file = ""

    def patches(self) -> list[tuple[Any, str, Any]]:
        """Owner, name, replacement."""
        ours = self.add, self.remove, self.enable, self.disable
        names = private.TRACE_OBSERVER_NAMES

        def register_callback(observer: Any, output_file_path: str) -> Any:
            return self.register(observer, output_file_path)

        return [
            (ExecutionTraceObserver, "register_callback", register_callback),
            *(
                (private.observer_module, name, function)
                for name, function in zip(names, ours, strict=True)
            ),
        ]

    def add(self, path: str) -> bool:
        context = context_here()
        if context is None:
            return bool(self._real.add(path))
        with self._lock:
            if context in self._traces:
                return False  # one at a time, as torch has it
            if not self._file and self._is_taken():
                warnings.warn(
                    "the program around this run has an ExecutionTraceObserver of its own, and "
                    "a process has one only: this rank gets no trace",
                    stacklevel=4,
                )
                return False
            with open(path, "w", encoding="utf-8"):
                pass  # a path that cannot be written fails here
            if not self._file:
                handle, self._file = tempfile.mkstemp(suffix=".json", prefix="phalanx-trace-")
                os.close(handle)
                self._real.add(self._file)
            self._made += 1
            self._traces[context] = _Trace(path, self._made, os.path.getsize(self._file))
        return True

    def _is_taken(self) -> bool:
        ranks = {id(observer) for found in self._observers.values() for observer in found}
        return any(
            private.is_registered_observer(thing) and id(thing) not in ranks
            for thing in gc.get_objects()
        )

    def register(self, observer: Any, path: str) -> Any:
        """In place of `ExecutionTraceObserver.register_callback`: knows whose it is."""
        context = context_here()
        if context is not None:
            self._observers.setdefault(context, []).append(observer)
        return self._register(observer, path)

    def leave(self, context: RankContext, *, stopping: bool) -> None:
        """Last thing in a rank's thread: what it left registered is finished, or dropped."""
        if not self._observers and not self._traces:
            return
        for observer in self._observers.pop(context, ()):
            if not stopping:
                observer.unregister_callback()
            private.retire_trace_observer(observer)
        with self._lock:
            if self._traces.pop(context, None) is not None:
                self._update()

    def enable(self) -> None:
        trace = self._trace_here()
        if trace is None:
            if context_here() is None:
                self._real.enable()
            return
        with self._lock:
            trace.running = True
            self._update()
            _mark(trace.begins)

    def disable(self) -> None:
        trace = self._trace_here()
        if trace is None:
            if context_here() is None:
                self._real.disable()
            return
        with self._lock:
            _mark(trace.ends)
            trace.running = False
            self._update()

    def remove(self) -> None:
        context, trace = context_here(), self._trace_here()
        if context is None:
            self._real.remove()
            return
        if trace is None:
            return
        with self._lock:
            if trace.running:
                _mark(trace.ends)
            trace.running = True  # so that the marks below are recorded
            self._update()
            for _ in range(8):
                _mark(trace.last + PADDING)
            del self._traces[context]
            self._update()
            head, text = _read(self._file, 0, 4096), _read(self._file, trace.offset)
        _write(trace, head, text)

    def close(self) -> None:
        """For the last world: put the observer away, and its file. Ranks that never took
        theirs away have an empty one."""
        self._traces.clear()
        self._update()
        if self._file:
            self._real.remove()
            os.unlink(self._file)
            self._file = ""

    def _trace_here(self) -> _Trace | None:
        context = context_here()
        return self._traces.get(context) if context is not None else None

    def _update(self) -> None:
        wanted = any(trace.running for trace in self._traces.values())
        if wanted != private.tracing:
            private.tracing = wanted
            if wanted:
                private.recording = True
                self._real.enable()
            else:
                self._real.disable()


def _mark(text: str) -> None:
    with record_function(text):
        pass


def _read(path: str, offset: int, size: int = -1) -> str:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size).decode(errors="replace")


def _write(trace: _Trace, head: str, text: str) -> None:
    """What stands between the marks, by the thread that left them. `text` may begin in the
    middle of a node, so the first mark is looked for."""
    place = text.find(f'"{trace.begins}"')
    nodes = list(_nodes(text[text.rfind("{", 0, place) :])) if place >= 0 else []
    kept: list[dict[str, Any]] = []
    if nodes:  # torch adds the root when it puts the observer away, and threads only once
        first = nodes[0]
        kept.append({**first, "name": THREAD, "id": first["ctrl_deps"], "ctrl_deps": 1})
        kept.append({**first, "name": ROOT, "id": 1, "ctrl_deps": 1})
    inside = False
    for node in nodes:
        name = node["name"]
        if name in (trace.begins, trace.ends):
            inside = name == trace.begins
        elif inside and _tid(node) == _tid(nodes[0]) and not name.startswith(MARK):
            kept.append(node)
    top = head.partition('"nodes": [')[0].rstrip().rstrip(",") + "}"
    with open(trace.path, "w", encoding="utf-8") as file:
        json.dump({**json.loads(top), "nodes": kept}, file)


def _nodes(text: str) -> Iterator[dict[str, Any]]:
    """The nodes that are complete; the observer may be writing the next one."""
    decoder = json.JSONDecoder()
    place = 0
    while True:
        place = text.find("{", place)
        if place < 0:
            return
        try:
            node, place = decoder.raw_decode(text, place)
        except ValueError:
            return
        yield node


def _tid(node: dict[str, Any]) -> Any:
    return next((a["value"] for a in node["attrs"] if a["name"] == "tid"), None)


current: SharedObserver | None = None
"""The one of the open worlds."""


def leave_thread(context: RankContext, *, stopping: bool) -> None:
    if current is not None:
        current.leave(context, stopping=stopping)
