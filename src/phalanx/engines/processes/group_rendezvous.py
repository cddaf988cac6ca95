"""Where ranks that are processes meet to make their default group.

Used by `process_rank.py`. Rank 0 serves one store as long as the process lives, on a socket
that was bound before any rank was started; in a run with faults the program does. It is there
for the group that the engine makes, and for what the program makes at the address in its
environment: torch would start a store for each group and end it with that, so that a rank which
is early for the next group finds the old store or none (figures in `docs/design.md`). Must
never answer for another address.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from torch.distributed import DistError, DistStoreError, TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d
from torch.distributed.constants import default_pg_timeout

from phalanx.backend.torch_private import private_registries as private
from phalanx.backend.torch_private.private_lookups import without_name_servers
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import RANK_PROCESS
from phalanx.engines.processes.rank_messages import Start
from phalanx.model import rank_list
from phalanx.system import getpid

LOOPBACK = "127.0.0.1"
PATIENCE = timedelta(seconds=300)
MOST_MEETINGS = 1000
"""After so many a process is worn: the store keeps a few keys of each until a fresh call."""

Found = tuple[c10d.Store, int, int]
Handler = Callable[..., Iterator[Found]]


class GroupRendezvous:
    """One process's end of it. Everything is allowed from any thread."""

    def __init__(self, start: Start, listener: int | None) -> None:
        self._start = start
        self._listener = listener
        self._lock = threading.Lock()
        self._kept: tuple[int, c10d.Store] | None = None
        self._last: tuple[tuple[int, timedelta], c10d.Store] | None = None
        self._meeting = threading.Lock()
        """Held by the thread that meets the others over the connection that is kept: it waits
        there, and nobody else could use the connection."""
        self._public: c10d.Store | None = None
        self._abandoned: list[Any] = []
        """Connections that end with the process: others may be using them."""
        self._inits = 0
        self._calls = 0
        self._meetings = 0
        self._forgotten = 0

    @property
    def is_worn(self) -> bool:
        return self._meetings > MOST_MEETINGS

    def open(self) -> None:
        """From now on this is what `env://` leads to, and `tcp://` with the same address."""
        if self._listener is not None:
            self._ours()  # others may wait for it, whatever this rank does
        put_in(RANK_PROCESS, [private.rendezvous_patch(("env", "tcp"), self._instead_of)])

    def begin_anew(self) -> None:
        """A fresh call begins, on all ranks: who came in the last one does not count."""
        if self._listener is not None and self._meetings > self._forgotten:
            ours, last = self._ours(), self._call()
            for key in ours.list_keys():
                if key.startswith(last):
                    ours.delete_key(key)
        self._forgotten = self._meetings
        self._calls += 1
        self._public = None

    def disconnect(self) -> None:
        """The store has lost its server: whoever meets from now on connects anew."""
        with self._lock:
            self._abandoned.append((self._kept, self._last))
            self._kept = self._last = self._listener = None

    def store_of_next_init(self) -> c10d.Store:
        """For the group that the engine makes."""
        self._inits += 1
        return c10d.PrefixStore(f"init {self._inits};", self._ours())

    def _instead_of(self, torchs: Handler) -> Handler:
        def meet(url: str, timeout: timedelta | None = None, **kwargs: Any) -> Iterator[Found]:
            parts = urlsplit(url)
            rank, size = _number(parts, "rank"), _number(parts, "world_size")
            if not self._is_ours(parts) or not 0 <= rank < size <= self._start.options.ranks:
                limit = {} if timeout is None else {"timeout": timeout}
                yield from torchs(url, **limit, **kwargs)
                return
            # Only `init_process_group` gives a limit. Who makes groups in one thread and RPC in
            # another need not do it in the same order everywhere.
            kind = "store" if timeout is None else "group"
            yield self._meet(kind, rank, size, timeout or default_pg_timeout), rank, size
            raise RuntimeError(f"{parts.scheme}:// leads to one meeting; ask for another one")

        return meet

    def _is_ours(self, url: SplitResult) -> bool:
        given = self._start.environ
        host, port = url.hostname, url.port
        if url.scheme == "env":
            host, text = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
            port = int(text) if text.isdigit() else None
        return str(port) == given["MASTER_PORT"] and _host(host) == _host(given["MASTER_ADDR"])

    def _meet(self, kind: str, rank: int, size: int, timeout: timedelta) -> c10d.Store:
        """A rank's n-th meeting is with the others' n-th, whichever process comes as it: so it
        is counted in the store. `timeout` becomes that of the connection, so one does for all
        groups that have the same. Whoever meets beside has one of its own."""
        mine = kind == "group" and self._meeting.acquire(blocking=False)
        try:
            connection = self._usual(timeout) if mine else self._connect(timeout)
            return self._meet_over(connection, kind, rank, size, timeout)
        finally:
            if mine:
                self._meeting.release()

    def _meet_over(
        self, connection: c10d.Store, kind: str, rank: int, size: int, timeout: timedelta
    ) -> c10d.Store:
        name = f"{self._call()}{kind} of {size}"
        call_ids = f"{name}: how often rank {rank} came"
        number = connection.add(call_ids, 1)
        lobby = c10d.PrefixStore(f"{name}, before {number};", connection)
        try:
            _wait_for_all(lobby, rank, size, timeout)
        except BaseException:
            lobby.delete_key(str(rank))
            connection.add(call_ids, -1)
            raise
        self._meetings += 1
        if rank == 0:
            self._serve_address(size)
        return c10d.PrefixStore(f"{name}, {number};", connection)

    def _call(self) -> str:
        return f"call {self._calls}/"

    def _serve_address(self, size: int) -> None:
        """Somebody may look for a store at the address itself, as torch has one there. torch
        would serve it at all addresses of the machine; whoever is on the network can reach it
        there."""
        given = self._start.environ
        host, port = given["MASTER_ADDR"], int(given["MASTER_PORT"])
        with self._lock, suppress(DistError, OSError):  # somebody else has it
            if self._public is None:
                self._public = _serve(host, port, size)

    def _ours(self) -> c10d.Store:
        with self._lock:
            if self._kept is None or self._kept[0] != getpid():
                is_child = self._kept is not None  # which serves nobody
                listener = None if is_child else self._listener
                self._kept = (getpid(), self._connect(PATIENCE, listener))
            return self._kept[1]

    def _usual(self, timeout: timedelta) -> c10d.Store:
        """The connection of the last group, if it has the right limit."""
        wanted = getpid(), timeout
        if self._last is None or self._last[0] != wanted:
            self._last = wanted, self._connect(timeout)
        store = self._last[1]
        store.set_timeout(timeout)
        return store

    def _connect(self, timeout: timedelta, listener: int | None = None) -> c10d.Store:
        port = self._start.store_port
        with without_name_servers():
            if listener is None:
                return TCPStore(LOOPBACK, port, timeout=timeout, wait_for_workers=False)
            return TCPStore(
                LOOPBACK,
                port,
                is_master=True,
                timeout=timeout,
                wait_for_workers=False,
                master_listen_fd=listener,
            )


def _serve(host: str, port: int, size: int) -> c10d.Store:
    """A store at this address and at no other, with a socket of IPv4: callers that come over
    IPv6 would be looked up by a name server, as those are that call."""
    given: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    listener = _listener_at(_host(host) or host, port)
    if listener is not None:
        given["master_listen_fd"] = listener
    with without_name_servers():
        return TCPStore(host, port, size, **given)


def _wait_for_all(lobby: c10d.Store, rank: int, size: int, timeout: timedelta) -> None:
    """As torch's own does, so that nobody goes on alone."""
    everybody = [str(each) for each in range(size)]
    lobby.set(f"seen {rank}", "")
    lobby.set(str(rank), "")
    try:
        lobby.wait(everybody, timeout)
    except DistStoreError:
        if not lobby.check(everybody):
            # Those who give up leave, but have been seen.
            missing = [each for each in range(size) if not lobby.check([f"seen {each}"])]
            whom = rank_list(missing) if missing else "others"
            raise DistStoreError(
                f"Timed out after {timeout.total_seconds():g} seconds waiting for "
                f"{whom} of {size} to make a group"
            ) from None


def _listener_at(host: str, port: int) -> int | None:
    """None if a store that the program has made is there: this process shares it."""
    try:
        return socket.create_server((host, port), backlog=128).detach()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise


def _number(url: SplitResult, name: str) -> int:
    """Of a rendezvous, -1 where there is none: in its address, or in the environment."""
    query = parse_qs(url.query)
    outside = os.environ.get(name.upper(), "") if url.scheme == "env" else ""
    text = query[name][-1] if name in query else outside
    return int(text) if text.isdigit() else -1


def _host(name: str | None) -> str | None:
    return LOOPBACK if name in ("localhost", "::1") else name
