"""What a machine lacks to run ranks, in a sentence: processes, files, addresses, folders.

Used by all engines around the steps that ask the system for something. Must never hide an error
that it does not know: those go on as they are.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.errors import UsageError

_NO_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.ENETDOWN}


@contextmanager
def limits_named(what: str) -> Iterator[None]:
    """Raise a `UsageError` that begins with `what` for what the machine lacks."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        lacks = lacking(error)
        if lacks is None:
            raise
        raise UsageError(f"{what}: {lacks}") from error


def lacking(error: BaseException) -> str | None:
    """What is missing and what to do, if this error says that the machine lacks something."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _no_more("threads")
    if not isinstance(error, OSError) or isinstance(error, TimeoutError):
        return None
    if error.errno == errno.EAGAIN:
        return _no_more("processes")
    if error.errno == errno.ENOMEM:
        return "the system has no memory for it; end other programs, or run fewer ranks"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f"no more files can be open{_limit('RLIMIT_NOFILE')}; close some, raise ulimit -n, "
            "or run fewer ranks"
        )
    if error.errno in _NO_ADDRESS:
        return (
            "this machine has no address 127.0.0.1, where ranks that are processes meet; bring "
            "it up (ip link set lo up), or use engine='threads', which needs no network"
        )
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return (
            "there is no folder for temporary files that can be written to; set TMPDIR to one"
        )
    return None


def _no_more(what: str) -> str:
    return (
        f"the system starts no more {what}{_limit('RLIMIT_NPROC')}; end others, raise "
        "ulimit -u or the container's limit of processes, or run fewer ranks"
    )


def _limit(name: str) -> str:
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return "" if soft == resource.RLIM_INFINITY else f" (the limit is {soft})"
