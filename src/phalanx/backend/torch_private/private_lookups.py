"""Connections of torch's stores without a question to a name server.

A part of `private.py`, under the same rule: the name, the reason, the versions. Used by
`engines/processes/group_rendezvous.py`. `TCPStore` asks for the name of the address that it
connects to, for a line in its log. It connects over IPv6 first, so 127.0.0.1 is
`::ffff:127.0.0.1` there, which no file of names has: the question goes to the name server, and
an answer that is lost costs 5 s and more. There is no address without it, and no option
(`docs/upstream-bugs.md`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# 2.11-2.13: the level below which the libraries of torch log nothing, an int of `c10`. They
# read the environment for it only once.
_LOG_LEVEL = "FLAGS_caffe2_log_level"
_ERRORS = 2


class _Resolver(ctypes.Structure):
    """How `struct __res_state` of glibc begins (resolv.h): each thread has one of its own."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("servers", ctypes.c_int),
    )


@contextmanager
def without_name_servers() -> Iterator[None]:
    """This thread asks none meanwhile, and torch does not complain of that: what no file tells
    has no name. Nothing changes where the C library is another one."""
    try:
        state, level = _resolver_here(), _log_level()
    except (AttributeError, OSError, ValueError):
        yield
        return
    servers, before = state.servers, level.value
    state.servers, level.value = 0, max(before, _ERRORS)
    try:
        yield
    finally:
        state.servers, level.value = servers, before


def _log_level() -> ctypes.c_int:
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    return ctypes.c_int.in_dll(ctypes.CDLL(library), _LOG_LEVEL)


def _resolver_here() -> _Resolver:
    libc = ctypes.CDLL(None)
    state_of_thread = getattr(libc, "__res_state")
    state_of_thread.restype = ctypes.POINTER(_Resolver)
    if getattr(libc, "__res_init")() != 0:
        raise OSError("no resolver")
    state: _Resolver = state_of_thread().contents
    return state
