"""Where ranks that are processes meet to make their default group.

Used by `rank.py`. Rank 0 serves one store as long as the process lives, on a socket that was
bound before any rank was started. It is there for the group that the engine makes, and for
what the program makes by `env://`: torch would start a store for each group and end it with
that, so that a rank which is early for the next group finds the old store or none (figures in
`docs/design.md`). Must never answer for an address that the program or its user chose.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torch.distributed import DistStoreError, TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

from phalanx.backend import private_registries as private
from phalanx.running.processes.messages import Start

LOOPBACK = "127.0.0.1"
PATIENCE = timedelta(seconds=300)
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
HERE, ALL_HERE = "here", "all here"

Found = tuple[c10d.Store, int, int]


class Meeting:
    """Each rank's n-th meeting of a kind is with the others' n-th."""

    def __init__(self, start: Start, listener: int | None) -> None:
        self._start = start
        self._listener = listener
        self._process = os.getpid()
        self._store: c10d.Store | None = None
        self._inits = 0
        self._calls = 0
        self._meetings = 0

    def begin_anew(self) -> None:
        """A fresh call begins, on all ranks: what each counted in the last one is over."""
        self._calls += 1
        self._meetings = 0

    def store_of_next_init(self) -> c10d.Store:
        """For the group that the engine makes."""
        self._inits += 1
        return c10d.PrefixStore(f"init {self._inits}", self._kept())

    def answer_env(self) -> None:
        """Be what `env://` leads to, where the engine chose the address."""
        if self._start.has_address:
            private.replace_rendezvous("env", self._instead_of)

    def _instead_of(self, torchs: Callable[..., Iterator[Found]]) -> Callable[..., Any]:
        def meet(url: str, timeout: timedelta = PATIENCE, **kwargs: Any) -> Iterator[Found]:
            if self._is_ours(url):
                return self._meet(_number(url, "rank"), timeout)
            return torchs(url, timeout=timeout, **kwargs)

        return meet

    def _is_ours(self, url: str) -> bool:
        """All ranks at the address that they were given. Torch says what else is wrong."""
        given = self._start.environ
        where = all(os.environ.get(name) == given[name] for name in ADDRESS)
        who = 0 <= _number(url, "rank") < _number(url, "world_size") == self._start.ranks
        return where and who and os.getpid() == self._process

    def _meet(self, rank: int, timeout: timedelta) -> Iterator[Found]:
        if self._listener is not None:
            self._kept()
        # A connection of its own, because `timeout` becomes that of the connection.
        connection = self._connect(timeout)
        name = f"env {self._calls}.{self._meetings}"
        self._wait_for_all(c10d.PrefixStore(f"{name} comes", connection), timeout)
        self._meetings += 1
        yield c10d.PrefixStore(name, connection), rank, self._start.ranks

    def _wait_for_all(self, store: c10d.Store, timeout: timedelta) -> None:
        """As torch's own does, so that nobody goes on alone. Who gives up may come again."""
        ranks = self._start.ranks
        if store.add(HERE, 1) == ranks:
            store.set(ALL_HERE, "")
        try:
            store.wait([ALL_HERE], timeout)
        except DistStoreError:
            others = store.add(HERE, -1)
            raise DistStoreError(
                f"Timed out after {timeout.total_seconds():g} seconds waiting for all ranks "
                f"at env://: {others + 1} of {ranks} came"
            ) from None

    def _kept(self) -> c10d.Store:
        """The connection of the process; that of rank 0 serves the others, and ends with it."""
        if self._store is None:
            self._store = self._connect(PATIENCE, serves=self._listener)
        return self._store

    def _connect(self, timeout: timedelta, *, serves: int | None = None) -> c10d.Store:
        port = self._start.store_port
        if serves is None:
            return TCPStore(LOOPBACK, port, timeout=timeout, wait_for_workers=False)
        return TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=serves,
        )


def _number(url: str, name: str) -> int:
    """Of a rendezvous, -1 where there is none: in its address, or in the environment."""
    query = parse_qs(urlsplit(url).query)
    text = query[name][-1] if name in query else os.environ.get(name.upper(), "")
    return int(text) if text.isdigit() else -1
