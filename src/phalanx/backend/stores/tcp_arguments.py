"""What a program gives to `TCPStore`. Used by `explored_tcp_stores.py` and, in runs with
faults, by `losses/lost_stores.py`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

_DEFAULT = timedelta(seconds=300)
_HIGHEST_PORT = 65535


@dataclass
class TCPArguments:
    """Named, ordered and preset as those of `TCPStore.__init__`."""

    host_name: str
    port: int
    world_size: int | None = None
    is_master: bool = False
    timeout: timedelta | float = _DEFAULT
    wait_for_workers: bool = True
    multi_tenant: bool = False
    master_listen_fd: int | None = None
    use_libuv: bool = True

    @property
    def seconds(self) -> float:
        timeout = self.timeout
        return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout

    @property
    def says_timeout(self) -> bool:
        return self.timeout is not _DEFAULT

    @property
    def workers(self) -> int:
        """For how many a server waits, with itself: torch takes a negative number as none."""
        return max(self.world_size or 0, 0) if self.wait_for_workers else 0

    def is_refused(self) -> bool:
        """Whether torch raises before it opens or connects anything."""
        if self.world_size is not None:
            self.world_size = operator.index(self.world_size)
        self.port = operator.index(self.port)
        return (
            not isinstance(self.host_name, str)
            or not isinstance(self.timeout, (timedelta, float))
            or not 0 <= self.port <= _HIGHEST_PORT
            or self.world_size == 0
        )


def read_tcp_arguments(args: Any, kwargs: Any) -> TCPArguments | None:
    """None if torch refuses them, at once and in its own words."""
    try:
        given = TCPArguments(*args, **kwargs)
        return None if given.is_refused() else given
    except TypeError:  # one too many, twice or missing, or no number
        return None
