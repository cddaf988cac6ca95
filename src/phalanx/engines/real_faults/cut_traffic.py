"""Cut the TCP connections of this process to others, so that nothing arrives over them.

Used in ranks, for partitions. A filter on a socket (`SO_ATTACH_FILTER` of Linux, which needs no
privilege) drops every packet that comes in, before TCP acknowledges it: the sender sends again
and again, as when a cable is out, and when the filter is gone what was sent arrives, at the
latest after as long again as the cut has lasted. Both ends do this. A connection that is made
meanwhile is cut when it is seen.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress

from phalanx.engines.real_faults.sockets_of_ranks import (
    Endpoint,
    ends_of,
    far_end,
    is_listening,
    own_end,
    own_sockets,
)

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)  # return 0: keep no byte of the packet

LOOK = 0.05
"""Seconds between two looks for connections that are new."""


Ends = tuple[Endpoint | None, Endpoint | None]


class _Cut:
    """From whom nothing arrives, and handles of the sockets that are cut, by their two ends.
    They stay cut when the other process has closed its end."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids
        self.held: dict[Ends, socket.socket] = {}

    def look(self) -> None:
        far = ends_of(self.pids)
        for _, found in own_sockets():
            ends = own_end(found), far_end(found)
            if ends[1] is None or ends[1] not in far or ends in self.held:
                found.close()
            else:
                _drop_all(found)
                self.held[ends] = found


class CutTraffic:
    """The cuts of this process, by number. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cuts: dict[int, _Cut] = {}
        self._over = threading.Event()

    def cut(self, number: int, pids: Sequence[int]) -> None:
        """From now on nothing arrives from these processes. OSError where that cannot be."""
        with self._lock:
            is_first = not self._cuts
            cut = self._cuts[number] = _Cut(pids)
            cut.look()
            if is_first:
                self._over = threading.Event()
                threading.Thread(
                    target=self._watch, args=(self._over,), daemon=True, name="phalanx-cut"
                ).start()

    def join(self, number: int) -> None:
        with self._lock:
            cut = self._cuts.pop(number, None)
            others = {ends for each in self._cuts.values() for ends in each.held}
            for ends, held in cut.held.items() if cut is not None else ():
                with suppress(OSError), held:
                    if ends not in others:
                        held.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
            if not self._cuts:
                self._over.set()

    def join_all(self) -> None:
        for number in list(self._cuts):
            self.join(number)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK):
            with self._lock, suppress(OSError):  # no file descriptor is left: the next look
                for cut in self._cuts.values():
                    cut.look()


def end_connections(kept: Collection[int]) -> None:
    """Of this process, but for those at these ports, on either side. Backends do not survive
    the end of a socket that listens."""
    for _, found in own_sockets():
        ends = own_end(found), far_end(found)
        with suppress(OSError), found:
            is_kept = any(end is not None and end[1] in kept for end in ends)
            if not is_kept and not is_listening(found):
                found.shutdown(socket.SHUT_RDWR)


def _drop_all(found: socket.socket) -> None:
    code = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    found.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
