"""What a rank runs that torch's launcher started (`python -m`, with this module).

Connects to the launcher on its machine (output, control) and to the referee of the whole job
(checks), then is the script: `rank script train.py ARGUMENTS` or `rank module NAME ARGUMENTS`.
Ends with what the script ended with. Must never be imported by a program.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from phalanx import callsite
from phalanx.engines.outcome import trim_traceback
from phalanx.engines.processes.rank_messages import Asking, Position, Raised, Where
from phalanx.engines.processes.script_on_processes import as_script, execute
from phalanx.engines.program import Program, load_module, load_script
from phalanx.engines.remote.link import Link, attach_tcp
from phalanx.engines.serialization import socket_wire
from phalanx.engines.terminal import NAMES, attach_terminal
from phalanx.engines.torchrun.addresses import is_loopback, own_address
from phalanx.engines.torchrun.launcher_messages import (
    Base,
    Done,
    Found,
    Hello,
    HowFar,
    OpenReferee,
    Progress,
    RefereeIsOpen,
    Stopped,
    Stream,
    Unchecked,
    connect,
    read_base,
)
from phalanx.engines.torchrun.rank_place import (
    PATIENCE,
    RankPlace,
    choose_interface,
    open_store,
    read_place,
)
from phalanx.errors import RankStopped, UsageError, VerdictError, text_of
from phalanx.system import current_frames, monotonic

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux

_libc = ctypes.CDLL(None)


def main(arguments: list[str]) -> int:
    base = read_base()
    place = read_place(base.meeting)
    _end_with_agent()
    home = Home(base, place)
    if base.own_output:
        home.take_output()
    faulthandler.enable(all_threads=False)
    choose_interface(place.master)
    try:
        kind, name, *rest = arguments
        program = (load_module if kind == "module" else load_script)(name, rest)
        store = open_store(place)
        kinds = frozenset(base.kinds)
        link = find_referee(home, place, store, kinds) if base.checked else None
    except Exception as error:
        home.tell(_raised(place.rank, error))
        return 1
    home.listen(link)
    return carry_out(program, link, home)


class Home:
    """The launcher on this machine, as the rank sees it."""

    def __init__(self, base: Base, place: RankPlace) -> None:
        self._base = base
        self._place = place
        self._sending = threading.Lock()
        self._main_thread = threading.get_ident()
        self._control = Connection(self._connect("control").detach())

    def _connect(self, stream: Stream) -> Any:
        place = self._place
        hello = Hello(
            token=self._base.token,
            stream=stream,
            pid=os.getpid(),
            rank=place.rank,
            ranks=place.ranks,
            local_rank=place.local_rank,
            local_ranks=place.local_ranks,
            generation=place.generation,
            meeting=place.meeting,
        )
        return connect(self._base, hello)

    def take_output(self) -> None:
        """What this process and its children print goes to the launcher, with our number."""
        streams: tuple[tuple[Stream, int], ...] = (("out", 1), ("err", 2))
        for stream, fd in streams:
            with self._connect(stream) as end:
                os.dup2(end.fileno(), fd)

    def tell(self, message: Any) -> None:
        with self._sending, suppress(OSError):
            socket_wire.send(self._control, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def ask(self, message: Any) -> Any:
        """Only before `listen`."""
        self.tell(message)
        return socket_wire.receive(self._control)

    def listen(self, link: Link | None) -> None:
        os.register_at_fork(after_in_child=self._control.close)
        threading.Thread(
            target=self._listen, args=(link,), daemon=True, name="phalanx-control"
        ).start()

    def _listen(self, link: Link | None) -> None:
        with suppress(EOFError, OSError):
            while True:
                order = socket_wire.receive(self._control)
                if isinstance(order, Where):
                    frame = current_frames().get(self._main_thread)
                    stack = callsite.user_stack(frame)
                    self.tell(Position(self._place.rank, order.number, stack))
                elif isinstance(order, HowFar):
                    self.tell(Progress(self._place.rank, 0 if link is None else link.calls))
        # The launcher is gone: nobody would ever stop us or what we started.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _end_with_agent() -> None:
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        _libc.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


# -- the checks -------------------------------------------------------------------------------


def find_referee(
    home: Home, place: RankPlace, store: Store | None, kinds: frozenset[str]
) -> Link | None:
    """Attach the checks. Rank 0 has its launcher serve them and says where in the store that
    torch's launcher serves; without such a store there are none."""
    if store is None:
        reason = "torch's launcher shares no store with the ranks (use --rdzv-backend c10d)"
        home.tell(Unchecked(place.rank, reason))
        return None
    key = f"phalanx referee {place.world}"
    if place.rank == 0:
        referee = home.ask(OpenReferee(_address_to_serve(place), place.ranks))
        assert isinstance(referee, RefereeIsOpen)
        store.set(key, f"{referee.port} {referee.token}")
    deadline = monotonic() + PATIENCE
    while True:
        port, token = store.get(key).decode().split()
        try:
            return attach_tcp(
                place.master, int(port), token=token, rank=place.rank, kinds=kinds
            )
        except OSError as error:  # perhaps that of a world that is gone
            if monotonic() > deadline:
                raise UsageError(
                    f"rank {place.rank} found no way to the checks, which rank 0's machine "
                    f"serves on {place.master}:{port}: {error}; let this port through, or run "
                    "with --checks none"
                ) from None
            time.sleep(0.1)


def _address_to_serve(place: RankPlace) -> str:
    """That which all ranks use towards rank 0, or all addresses if its name leads elsewhere
    on other machines."""
    own = own_address(place.master) or ""
    return "" if is_loopback(own) and place.ranks > place.local_ranks else own


# -- the script -------------------------------------------------------------------------------


def carry_out(program: Program, link: Link | None, home: Home) -> int:
    """Be the script, and say what became of it; the exit status."""
    rank = int(os.environ["RANK"])
    given = {name: os.environ.pop(name) for name in NAMES if name in os.environ}
    attach_terminal(rank, given, lambda begins: home.tell(Asking(rank, begins)))
    try:
        initialised = execute(as_script(program))
    except RankStopped:
        home.tell(Stopped(rank))
        return _leave(1)
    except VerdictError as error:
        home.tell(Found(rank, type(error).__name__, str(error)))
        return _leave(3)
    except BaseException as error:
        message = _raised(rank, error, link)
        if link is not None and not isinstance(error, KeyboardInterrupt):
            link.failed(error)  # or others would hear of that before they hear of Ctrl-C
        home.tell(message)
        return _leave(_status(error))
    if link is not None:
        link.finished()
        link.detach()
    home.tell(Done(rank, initialised))
    return _leave(0)


def _raised(rank: int, error: BaseException, link: Link | None = None) -> Raised:
    when = monotonic()
    site = callsite.raised_at(error.__traceback__)
    invalid = None if link is None else link.judge_error(error)
    trim_traceback(error)
    return Raised(
        rank=rank,
        kind=type(error).__name__,
        message=text_of(error),
        trace="".join(traceback.format_exception(error)),
        when=when,
        error=_pickled(error),
        site=site,
        invalid=invalid,
    )


def _pickled(error: BaseException) -> bytes | None:
    """Only what the launcher can read without the modules of the program."""
    if type(error).__module__ != "builtins":
        return None
    with suppress(Exception):
        return pickle.dumps(type(error)(*error.args))
    return None


def _status(error: BaseException) -> int:
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 0xFF
    return 1


def _leave(status: int) -> int:
    """End as a program does, up to the objects of the backend: what these do when Python
    takes them down (threads that nobody joins) kills or hangs the process at times."""
    with suppress(Exception):
        if status == 0 and dist.is_initialized() and dist.get_backend() != dist.Backend.GLOO:
            dist.destroy_process_group()
    run_at_exit: Any = atexit._run_exitfuncs
    with suppress(Exception):
        run_at_exit()
    with suppress(Exception):
        vars(sys.modules["__main__"]).clear()  # files that are still open are written
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _libc.fflush(None)
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
