"""Programs that start their own ranks: keep their processes, and begin them as ranks.

`SpawningProgram` replaces the start of a `multiprocessing` process. A process that could be a
rank (`spawn_rules.py`) is not started but kept, as a `Child`, until the program waits for
something; then all kept children begin together, as the ranks of one world. The program itself
is no rank and waits outside the baton, unless it calls `init_process_group`: then it is one of
them (`ParentRank`). Used by `self_spawning_scripts.py` for `phalanx run SCRIPT` without a
number of ranks.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from phalanx.core.launcher import throw_into
from phalanx.core.strand import Strand, is_asleep
from phalanx.emulation.children.spawn_rules import (
    LAUNCHER,
    could_be_rank,
    find_expected,
    find_launches,
    is_complete,
    is_launcher,
    is_torch_spawn,
    lacks_rank_0,
    split_batch,
)
from phalanx.emulation.stdlib.interrupts import AGAIN, throw
from phalanx.emulation.stdlib.signals import HARMLESS, send
from phalanx.emulation.stdlib.signals import children as children_by_pid
from phalanx.errors import RankStopped
from phalanx.system import current_frames, monotonic

LOOK = 0.02
"""Seconds between two looks at the program."""
PATIENCE = 0.3
"""Seconds that the program must be blocked before what it has started begins, if nothing says
how many ranks there will be. A blocked program waits for its ranks, or is about to."""
LONG = 10.0
"""The same for a program that sleeps or computes, or has said that it will start more: it goes
on by itself. Without a limit, one that waits in a loop of its own would wait for ever."""
HELD = 1.0
"""Seconds for which the end of a rank that was stopped stays hidden, unless the program has
seen the one that failed: a program that waits for any of them must find that one first."""

_numbers = itertools.count(1 << 22)
"""For `Process.pid`: above every real one. Ranks share the process's own."""


class Child:
    """A process of the program that is, or may become, a rank. It has the attributes and
    methods that `Process` expects of its `_popen`."""

    method = "phalanx"
    finalizer = None

    def __init__(
        self,
        family: SpawningProgram,
        process: Any,
        original: Callable[[Any], Any],
        payload: Any,
        environ: Mapping[str, str],
    ) -> None:
        self.process = process
        self.payload = payload
        self.environ = environ
        self.starter = threading.get_ident()
        self.returncode: int | None = None
        self.pid = next(_numbers)
        children_by_pid[self.pid] = self._send
        self.sentinel, self._write_end = os.pipe()
        self.strand: Strand | None = None
        self.sent = 0
        """The signal by which the program has ended it."""
        self.is_ending = False
        """Whether it has failed, and is about to end by itself."""
        self.lacks_rank_0 = False
        """Whether it is in a world whose ranks were numbered from 1."""
        self._family = family
        self._original = original
        self._given = process._target, process._args, process._kwargs
        self._real: Any = None
        self._ended = threading.Event()
        self._held_code: int | None = None
        self._awaited = False

    def become_a_process(self) -> None:
        """Start it as a process after all: it is no rank."""
        process = self.process
        try:
            self._real = self._original(self.restored())
        except BaseException:
            self.end(1, hold=False)
            raise
        process._popen, process._sentinel = self._real, self._real.sentinel

    def restored(self) -> Any:
        """The process object as it was before it was started."""
        process = self.process
        target, args, kwargs = self._given
        return _with_attributes(process, _target=target, _args=args, _kwargs=kwargs)

    # -- what Process calls ---------------------------------------------------------------

    def poll(self, flag: int = 0) -> int | None:
        asked = sys._getframe(1).f_code.co_name
        if self.returncode is None and asked in ("is_alive", "exitcode"):
            self._family.asked()
        elif self.returncode and asked == "exitcode":
            self._family.observed = True
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._family.begin()
        if self._real is not None:
            return self._real.wait(timeout)  # type: ignore[no-any-return]
        self._awaited = True
        self.show()
        if not self._ended.is_set():
            self._ended.wait(timeout)
        self._awaited = False
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.sentinel)

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    # -- what the world calls -------------------------------------------------------------

    def end(self, code: int, *, hold: bool) -> None:
        """The rank has ended; with `hold` its end is not shown yet."""
        if self.returncode is not None or self._held_code is not None:
            return
        self._held_code = -self.sent if self.sent else code
        if not hold or self.sent or self._awaited:
            self.show()

    def show(self) -> None:
        code, self._held_code = self._held_code, None
        if code is None:
            return
        self.returncode = code
        self._ended.set()
        with suppress(OSError):
            os.close(self._write_end)

    def is_held(self) -> bool:
        return self._held_code is not None

    def has_ended(self) -> bool:
        return self.returncode is not None or self._held_code is not None

    def _send(self, number: int) -> None:
        self._family.begin()
        if self._real is not None:
            self._real._send_signal(number)
            return
        self.show()
        if self.strand is not None and number != signal.SIGKILL and send(self.strand, number):
            return
        if self.is_ending or self.returncode is not None:
            return
        if not self.sent and number not in HARMLESS:
            self.sent = number
            _stop_one(self.strand)


def _with_attributes(process: Any, **attributes: Any) -> Any:
    kind: Any = type(process)
    copied = kind.__new__(kind)
    copied.__dict__.update({**vars(process), **attributes, "_popen": None})
    return copied


def _stop_one(strand: Strand | None) -> None:
    """Unwind this rank alone, but not while it is about to end by itself. Blocks for at most
    HELD seconds. A rank that has not begun checks `sent` when it does."""
    limit = monotonic() + HELD
    while strand is not None and not throw(strand, RankStopped()):
        if monotonic() > limit:
            throw_into(strand.ident)
            return
        time.sleep(AGAIN)


def _described(children: Sequence[Child]) -> tuple[list[Any], list[Mapping[str, str]]]:
    return [child.restored() for child in children], [child.environ for child in children]


def _split(children: list[Child]) -> list[list[Child]]:
    """The children by launch."""
    if not children:
        return []
    starters = [child.starter for child in children]
    launches = find_launches(*_described(children), starters)
    return [[children[place] for place in places] for places in launches]


def _find_ranks(batch: list[Child]) -> list[tuple[int, int]]:
    """(place in the batch, rank). What was launched at the same time becomes one world; the
    numbers of later ones follow, until they make their groups."""
    found: list[tuple[int, int]] = []
    launches = _split(batch)
    for launch in launches:
        ranks = split_batch(*_described(launch))
        lowest = min((rank for _, rank in ranks), default=0) if len(launches) > 1 else 0
        before = len(found)
        found += [(batch.index(launch[p]), before + rank - lowest) for p, rank in ranks]
    return found


class Programs(weakref.WeakSet[Any]):
    """The processes that the program started by `subprocess`."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[Any] = []
        """Commands by which torch's own launcher was started, or by which it, called in the
        program, has started its ranks."""

    def add(self, program: Any) -> None:
        super().add(program)
        if is_launcher(program.args) or _is_called_by(LAUNCHER):
            self.launched.append(program.args)


def _is_called_by(package: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(package):
            return True
        frame = frame.f_back
    return False


class SpawningProgram:
    """The program and the processes that it starts. `open_world(children, numbers,
    parent_rank)` runs them as ranks, in a thread of its own."""

    def __init__(
        self, pack: Callable[[Any, bool], Any], open_world: Callable[..., Any]
    ) -> None:
        self._pack = pack
        self._open_world = open_world
        self._pending: list[Child] = []
        self._worlds: list[threading.Thread] = []
        self.children: list[Child] = []
        self.programs = Programs()
        self.observed = False
        """Whether the program has looked at the exit code of a rank that failed."""
        self._lock = threading.RLock()
        self._main, self._ident = threading.get_native_id(), threading.get_ident()
        self._watcher: threading.Thread | None = None
        self._last_start = 0.0
        self._open = True
        self.parent_rank: Any = None
        """The program's own rank, while it is one."""
        self.parent_state: Any = None
        """The state that it keeps from the time when it was one."""

    def takes_back(self, process: Any) -> bool:
        """The program, which is a rank, starts a process. Returns whether it stops being a
        rank: its group and the other ranks are gone, and the process could be a rank of the
        next world."""
        parent_rank = self.parent_rank
        if parent_rank is None or not could_be_rank(process, dict(os.environ)):
            return False
        has_left = self.leaves_rank()
        parent_rank.is_overdue |= not has_left and parent_rank.is_free()
        return has_left

    def leaves_rank(self) -> bool:
        """Whether the program, which is a rank, stops being one now: its group and the other
        ranks are gone. Blocks for ranks that are about to end."""
        parent_rank = self.parent_rank
        if parent_rank is None or not parent_rank.is_free():
            return False
        limit = monotonic() + HELD
        for child in parent_rank.children:
            child.wait(max(0.0, limit - monotonic()))
        if not parent_rank.is_alone():
            return False
        self.parent_state = parent_rank.give_up()
        self.parent_rank = None
        return True

    def start(self, process: Any, original: Callable[[Any], Any], *, forked: bool) -> Any:
        """Called instead of starting a process: keeps it, or starts it."""
        environ = dict(os.environ)
        if not could_be_rank(process, environ):
            return original(process)
        child = Child(self, process, original, self._pack(process, forked), environ)
        with self._lock:
            self._pending.append(child)
            self._last_start = monotonic()
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True)
                self._watcher.start()
        return child

    def begin(self, parent_rank: Any = None) -> bool:
        """Begin the kept children as ranks. Returns whether there are any."""
        with self._lock:
            batch, self._pending = self._choose(self._pending)
            if not batch:
                return False
            ranks = _find_ranks(batch)
            if parent_rank is not None and not ranks:
                ranks = [(place, place + 1) for place in range(len(batch))]
            chosen = {place for place, _ in ranks}
            for place, child in enumerate(batch):
                if place not in chosen:
                    child.become_a_process()
            if not ranks:
                return False
            self._open_one(
                [batch[place] for place, _ in ranks], [r for _, r in ranks], parent_rank
            )
        return True

    def _choose(self, kept: list[Child]) -> tuple[list[Child], list[Child]]:
        """The children that are to begin, and the others: of several launches at the same time,
        some may be incomplete."""
        ready: list[Child] = []
        launches = _split(kept)
        for launch in launches:
            if len(launches) == 1 or is_complete(*_described(launch)):
                ready += launch
        if not ready:
            return kept, []
        return ready, [child for child in kept if child not in ready]

    def _open_one(self, children: list[Child], numbers: list[int], parent_rank: Any) -> None:
        first = min(numbers)
        for child in children:
            child.lacks_rank_0 = parent_rank is None and first == 1
        if parent_rank is None or first > 1:
            numbers = [number - first for number in numbers]
        self.children += children
        if parent_rank is not None:
            parent_rank.children, self.parent_rank = children, parent_rank
        world = threading.Thread(
            target=self._open_world, args=(children, numbers, parent_rank), daemon=True
        )
        self._worlds.append(world)
        world.start()

    def has_pending(self) -> bool:
        return bool(self._pending)

    def finish(self) -> None:
        """At the end of the program: as multiprocessing does, end the daemons among its
        children and wait for the others."""
        while self._pending:
            self.begin()
        for child in self.children:
            if child.process.daemon and not child.has_ended():
                child.terminate()
        for world in self._worlds:
            world.join()
        self._close()

    def _close(self) -> None:
        self._open = False
        for child in self.children:
            children_by_pid.pop(child.pid, None)
            child.close()

    def stop(self) -> None:
        """The program was interrupted: no rank may outlive it."""
        self._pending.clear()
        for child in self.children:
            if child.strand is not None:
                child.strand.baton.stop(at_once=True)
        for world in self._worlds:
            world.join(6.0)
        self._close()

    def asked(self) -> None:
        """The program asks whether a process runs: if it goes on asking, it waits for it."""
        if self._pending and monotonic() - self._last_start > self._patience():
            self.begin()

    def _watch(self) -> None:
        """Begin when the program waits where we do not see it, or goes on for long. A program
        that must be the missing rank itself may go on for as long as it likes."""
        blocked_since = monotonic()
        while not self._is_idle():
            time.sleep(LOOK)
            now, patience = monotonic(), self._patience()
            if not is_asleep(self._main) or (self._is_sleeping() and not self._has_all()):
                blocked_since = now
            blocked = now - max(blocked_since, self._last_start)
            went_on = 0.0 if self._is_awaited() else now - self._last_start
            if blocked > patience or went_on > LONG:
                self.begin()

    def _is_sleeping(self) -> bool:
        """Whether the program is in `time.sleep`, which is a function of ours just now."""
        frame = current_frames().get(self._ident)
        return frame is not None and frame.f_code is getattr(time.sleep, "__code__", None)

    def _is_idle(self) -> bool:
        with self._lock:
            if self._open and self._pending:
                return False
            self._watcher = None
            return True

    def _is_awaited(self) -> bool:
        """Whether the program itself is to be one of the ranks."""
        with self._lock:
            pending = list(self._pending)
        return bool(pending) and lacks_rank_0(*_described(pending))

    def _has_all(self) -> bool:
        """Whether some launch has all its ranks. torch's function starts them in one call."""
        with self._lock:
            launches = _split(self._pending)
        return any(
            all(is_torch_spawn(child.restored()) for child in launch)
            or self._patience_for(launch) == LOOK
            for launch in launches
        )

    def _patience(self) -> float:
        with self._lock:
            launches = _split(self._pending)
        return min(map(self._patience_for, launches), default=LONG)

    def _patience_for(self, launch: list[Child]) -> float:
        expected = find_expected(*_described(launch))
        if expected is None:
            return PATIENCE
        return LOOK if expected <= len(launch) else LONG
