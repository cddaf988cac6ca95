"""Writes the ring and the stacks of all threads to the rank's file.

Used by the black box when something has happened, never on the path of a call. May run in any
thread; the file is written beside and then moved, so that whoever reads it finds a whole one.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import weakref
from pathlib import Path
from time import time
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist

from phalanx import callsite
from phalanx.backend.collectives.reduction import NAMES
from phalanx.backend.torch_private import private
from phalanx.blackbox.call_ring import (
    GROUP,
    INPUTS,
    MARK,
    MORE,
    NAME,
    NUMBER,
    OUTPUTS,
    TIME,
    WORK,
    BoxGroup,
    CallRing,
    Entry,
)
from phalanx.errors import text_of
from phalanx.explain.black_box_file import FORMAT, VERSION
from phalanx.model import Site
from phalanx.source_text import branch_by_rank
from phalanx.system import current_frames

REQUEST = ".dump"
"""A file in the folder that asks all ranks for a dump when it changes."""


class BoxWriter:
    """One rank's file."""

    def __init__(self, ring: CallRing, folder: Path) -> None:
        self.ring = ring
        self.folder = folder
        self.pid = os.getpid()
        self._writing = threading.Lock()
        self._had = getattr(sys, "last_value", None)

    def start(self) -> None:
        """A file of an earlier run would be taken for one of this."""
        self.path(self.rank()).unlink(missing_ok=True)
        atexit.register(self._at_exit)

    def stop(self) -> None:
        atexit.unregister(self._at_exit)

    def rank(self) -> int:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return int(os.environ.get("RANK", "0"))

    def path(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.json"

    def _at_exit(self) -> None:
        if os.getpid() != self.pid:
            return
        error = getattr(sys, "last_value", None)
        self.write("exit" if error is self._had else "crash", ended=True)

    def write(self, reason: str, *, ended: bool = False, died: str | None = None) -> Path:
        """The path of the file; `died` says of what the process is about to die. What goes
        wrong on the way is raised."""
        with self._writing:
            data = self._collect(reason, ended)
            if died is not None:
                data["status"], data["error"] = "failed", died
            path = self.path(data["rank"])
            beside = path.with_suffix(".tmp")
            beside.write_text(json.dumps(data, separators=(",", ":")), encoding="ascii")
            beside.replace(path)
            return path

    def request_all(self) -> None:
        """Ask the other ranks of the folder, too."""
        (self.folder / REQUEST).write_text(str(time()), encoding="ascii")

    # -- what is written ----------------------------------------------------------------------

    def _collect(self, reason: str, ended: bool) -> dict[str, Any]:
        tables = _Tables()
        entries = [entry for entry in self.ring.entries if entry[WORK] is not False]
        places = {id(entry): at for at, entry in enumerate(entries)}
        error = getattr(sys, "last_value", None) if ended and reason == "crash" else None
        status = "failed" if error is not None else "finished" if ended else "running"
        trace = None if error is None else getattr(sys, "last_traceback", None)
        threads = [] if ended else self._threads(tables, places)
        if trace is not None:
            threads = [self._raising_thread(trace, tables, places)]
        stopped = {thread[3] for thread in threads}
        rank = self.rank()
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if dist.is_initialized():
            world = dist.get_world_size()
        return {
            "format": FORMAT,
            "version": VERSION,
            "run": _run_name(),
            "rank": rank,
            "world": max(world, rank + 1),
            "pid": self.pid,
            "host": socket.gethostname(),
            "reason": reason,
            "taken": time(),
            "status": status,
            "error": None if error is None else f"{type(error).__name__}: {text_of(error)}",
            "error_at": tables.site(callsite.raised_at(trace)) if trace is not None else None,
            "dropped": max(0, self.ring.total - len(self.ring.entries)),
            "calls": [tables.call(e, waits=at in stopped) for at, e in enumerate(entries)],
            "threads": threads,
            "sites": tables.sites,
            "groups": tables.groups,
            "tensors": tables.tensors,
        }

    def _threads(self, tables: _Tables, places: dict[int, int]) -> list[Any]:
        names = {thread.ident: thread for thread in threading.enumerate()}
        main = threading.main_thread().ident
        found = []
        for ident, frame in current_frames().items():
            thread = names.get(ident)
            if ident == threading.get_ident() or (thread and thread.name == MONITOR):
                continue
            call = find_call(self.ring, frame)
            lines = [tables.site(site) for site in callsite.user_stack(frame)]
            found.append(
                [
                    thread.name if thread is not None else str(ident),
                    ident == main,
                    lines,
                    None if call is None else places.get(id(call)),
                    frame.f_code.co_name,
                    _branch_around(frame) if ident == main else False,
                ]
            )
        return found

    def _raising_thread(
        self, trace: TracebackType, tables: _Tables, places: dict[int, int]
    ) -> list[Any]:
        """The main thread as it was when the program raised."""
        lines, call, last = [], None, trace.tb_frame
        step: TracebackType | None = trace
        while step is not None:
            last = step.tb_frame
            call = _call_at(self.ring, last) or call
            step = step.tb_next
        site = callsite.raised_at(trace)
        if site is not None:
            lines.append(tables.site(site))
        place = None if call is None else places.get(id(call))
        return ["MainThread", True, lines, place, last.f_code.co_name]


MONITOR = "phalanx-blackbox"


def _branch_around(frame: FrameType | None) -> str | None:
    """The branch that tests the rank by which a thread came where it is."""
    while frame is not None:
        if not callsite.is_library(frame.f_code.co_filename):
            mark = frame.f_code, frame.f_lasti
            line = branch_by_rank(mark)
            if line is not None:
                return f"{callsite.shown_path(frame.f_code.co_filename)}:{line}"
        frame = frame.f_back
    return None


def find_call(ring: CallRing, frame: FrameType | None) -> Entry | None:
    """The call that a thread is in, or waits for."""
    while frame is not None:
        found = _call_at(ring, frame)
        if found is not None:
            return found
        frame = frame.f_back
    return None


def _call_at(ring: CallRing, frame: FrameType) -> Entry | None:
    variable = ring.codes.get(frame.f_code)
    if variable is None:
        return None
    value = frame.f_locals.get(variable)
    if variable == "self":
        return ring.find(value)
    return value if isinstance(value, list) else None


def _run_name() -> str:
    """The same for all ranks of one start, another for the next."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return " ".join(os.environ.get(name, "") for name in names)


class _Tables:
    """What repeats is written once and named by its place."""

    def __init__(self) -> None:
        self.sites: list[Any] = []
        self.groups: list[Any] = []
        self.tensors: list[Any] = []
        self._known: dict[Any, int] = {}

    def _place(self, table: list[Any], value: Any, key: Any) -> int:
        at = self._known.get(key)
        if at is None:
            at = self._known[key] = len(table)
            table.append(value)
        return at

    def site(self, site: Site | None) -> int | None:
        if site is None:
            return None
        value = [site.file, site.line, site.function, site.source]
        return self._place(self.sites, value, site)

    def group(self, group: BoxGroup) -> int:
        value = [group.key, group.name, group.ranks, group.backend, group.description]
        return self._place(self.groups, value, group.key)

    def specs(self, given: Any) -> list[int]:
        if isinstance(given, tuple) and len(given) == 4:
            dtype, shape, device, strides = given
            value = [
                str(dtype).removeprefix("torch."),
                [int(n) for n in shape],
                str(device),
                [int(n) for n in strides or ()],
            ]
            return [self._place(self.tensors, value, json.dumps(value))]
        return [at for each in given for at in self.specs(each)]

    def call(self, entry: Entry, *, waits: bool) -> list[Any]:
        name, more = entry[NAME], entry[MORE]
        root = peer = tag = made = op = source = None
        splits: list[list[int]] = [[], []]
        if name in ("send", "recv") and isinstance(more, tuple):
            peer, tag = more[0], int(more[1])
            peer = None if peer is None else int(peer)
        elif name == "new_group":
            made = more
        elif name == "all_to_all_single" and isinstance(more, tuple):
            splits = [[int(n) for n in more[1]], [int(n) for n in more[0]]]
        else:
            root, op = _root_of(name, more), _op_of(name, more)
        if entry[NUMBER] is None and name not in ("send", "recv", "new_group"):
            tag = None
        if peer is None and name == "recv":
            source = more[2] if more and len(more) > 2 else _source_of(entry[WORK])
        site = callsite.resolve(entry[MARK])
        return [
            entry[TIME],
            self.site(site),
            name,
            self.group(entry[GROUP]),
            entry[NUMBER],
            root,
            peer,
            tag,
            op,
            self.specs(entry[INPUTS]),
            self.specs(entry[OUTPUTS]),
            splits,
            False if waits else _is_done(entry[WORK]),
            made,
            source,
        ]


def _root_of(name: str, more: Any) -> int | None:
    if name not in ("broadcast", "reduce", "gather", "scatter"):
        return None
    root = more if isinstance(more, int) else getattr(more, "rootRank", None)
    return None if root is None else int(root)


def _op_of(name: str, more: Any) -> str | None:
    if not name.startswith(("all_reduce", "reduce")):
        return None
    op = getattr(more, "reduceOp", None)
    try:
        return None if op is None else NAMES[int(op.op)]
    except Exception:
        return None


def _is_done(work: Any) -> bool | None:
    """A `Work` that nobody holds any more was waited for, or dropped."""
    if work is None:
        return False
    if work is True:
        return True
    kept = work() if type(work) is weakref.ref else work
    if kept is None:
        return True
    try:
        return bool(kept.is_completed())
    except Exception:
        return None


def _source_of(work: Any) -> int | None:
    try:
        return private.source_of(work) if work.is_completed() else None
    except Exception:
        return None
