"""What a rank runs that torch's launcher started (`python -m`, with this module).

Connects to the launcher on its machine (output, control) and to the referee of the whole job
(checks), then is the script: `torchrun_rank script train.py ARGUMENTS` or `torchrun_rank module
NAME ARGUMENTS`. Ends with what the script ended with. What every remote rank does is in
`engines/remote/rank_main.py`. Must never be imported by a program.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import socket
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from phalanx.engines.program import Program, load_module, load_script
from phalanx.engines.referee.referee_key import KEY, read_offer
from phalanx.engines.remote.control_messages import HowFar, Where
from phalanx.engines.remote.link import Link, SentAway, attach, attach_tcp
from phalanx.engines.remote.rank_main import RemoteRank, die_with_parent, flush_streams
from phalanx.engines.script_in_rank import as_script, execute
from phalanx.engines.serialization import socket_wire
from phalanx.engines.terminal import NAMES
from phalanx.engines.torchrun.addresses import is_loopback, own_address
from phalanx.engines.torchrun.launcher_messages import (
    Base,
    Done,
    Found,
    Hello,
    OpenReferee,
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
from phalanx.errors import RankStopped, UsageError, VerdictError
from phalanx.system import monotonic

SENT_AWAY = 5.0
"""Seconds until a rank that the referee does not know gives up."""


def main(arguments: list[str]) -> int:
    base = read_base()
    place = read_place(base.meeting)
    die_with_parent(may_be_init=True)
    rank = TorchrunRank(base, place)
    if base.own_output:
        rank.take_output()
    faulthandler.enable(all_threads=False)
    choose_interface(place.master)
    try:
        kind, name, *rest = arguments
        program = (load_module if kind == "module" else load_script)(name, rest)
        store = open_store(place)
        rank.link = find_referee(rank, place, store, base) if base.checked else None
        if rank.link is None and base.timed:
            rank.notice_calls()
    except Exception as error:
        rank.tell(rank.describe_failure(error, _pickled))
        return 1
    rank.listen()
    return rank.carry_out(program)


class TorchrunRank(RemoteRank):
    """Runs one script, and tells the launcher on this machine what became of it."""

    def __init__(self, base: Base, place: RankPlace) -> None:
        self._base = base
        self._place = place
        super().__init__(Connection(self.connect("control").detach()), place.rank)

    def connect(self, stream: Stream) -> socket.socket:
        """A new connection to the launcher."""
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
            with self.connect(stream) as end:
                os.dup2(end.fileno(), fd)

    def tell(self, message: Any) -> None:
        """A launcher that is gone is noticed by the second thread."""
        with suppress(OSError):
            super().tell(message)

    def ask(self, message: Any) -> Any:
        """Only before `listen`. The launcher may ask how far the rank is before it answers."""
        self.tell(message)
        while isinstance(answer := socket_wire.receive(self._control), (HowFar, Where)):
            self.obey(answer)
        return answer

    def take_order(self, order: Any) -> None:
        """There are none but those that every remote rank knows."""

    # -- the script ---------------------------------------------------------------------------

    def carry_out(self, program: Program) -> int:
        """Be the script, and say what became of it. Does not return."""
        self.attach_terminal({n: os.environ.pop(n) for n in NAMES if n in os.environ})
        initialised: list[bool] = []

        def body() -> None:
            initialised.append(execute(as_script(program), tell_test=self.tell_test))

        status: int | None = self.run(body, self._tell_failure)
        if status is None:
            if self.link is not None:
                self.link.finished()
            self.detach()
            self.tell(Done(self.rank, initialised[0]))
        return self._leave(status)

    def _tell_failure(self, error: BaseException) -> int:
        """The exit status."""
        if isinstance(error, RankStopped):
            self.tell(Stopped(self.rank))
            return 1
        if isinstance(error, VerdictError):
            self.tell(Found(self.rank, type(error).__name__, str(error)))
            return 3
        message = self.describe_failure(error, _pickled)
        if self.link is not None and not isinstance(error, KeyboardInterrupt):
            self.link.failed(error)  # or others would hear of that before they hear of Ctrl-C
        self.tell(message)
        return _status(error)

    def _leave(self, status: int | None) -> int:
        """End as a program does, up to the objects of the backend: what these do when Python
        takes them down (threads that nobody joins) kills or hangs the process at times."""
        self.end_program(leave_group=status is None)
        with suppress(Exception):
            vars(sys.modules["__main__"]).clear()  # files that are still open are written
            gc.collect()
        flush_streams()
        os._exit(status or 0)


# -- the checks -------------------------------------------------------------------------------


def find_referee(
    rank: TorchrunRank, place: RankPlace, store: Store | None, base: Base
) -> Link | None:
    """Attach the checks, which rank 0's launcher serves: to its own ranks over its own socket.
    To ranks of other machines rank 0 says where in the store that torch's launcher serves;
    without such a store there are none."""
    several = place.ranks > place.local_ranks
    if several and store is None:
        reason = "torch's launcher shares no store with the ranks (use --rdzv-backend c10d)"
        rank.tell(Unchecked(place.rank, reason))
        return None
    key = f"phalanx referee {place.world}"
    if place.rank != place.local_rank:
        assert store is not None
        return _attach_from_afar(place, store, key, base)
    host = _address_to_serve(place) if several else None
    referee = rank.ask(OpenReferee(host, place.ranks))
    assert isinstance(referee, RefereeIsOpen)
    if several and place.rank == 0:
        assert store is not None
        store.set(key, referee.offer)
    return attach(rank.connect("referee"), rank=place.rank, kinds=base.kinds)


def _attach_from_afar(place: RankPlace, store: Store, key: str, base: Base) -> Link:
    """Over the network. What the store says may be of a world that is gone, so it is read again
    if that leads nowhere."""
    began = monotonic()
    while True:
        offer = read_offer(store.get(key))
        if offer is None:
            raise UsageError(
                f"rank {place.rank} found in torch's store where the checks are, and cannot "
                "read it; run the same version of Phalanx on all machines, or run with "
                "--checks none"
            )
        try:
            return attach_tcp(
                place.master,
                offer.port,
                token=offer.token(base.key),
                rank=place.rank,
                kinds=base.kinds,
            )
        except OSError as error:
            seconds = monotonic() - began
            if seconds > (SENT_AWAY if isinstance(error, SentAway) else PATIENCE):
                what = _unreachable(place, offer.port, error)
                raise UsageError(f"{what}, or run with --checks none") from None
            time.sleep(0.1)


def _unreachable(place: RankPlace, port: int, error: OSError) -> str:
    if isinstance(error, SentAway):
        return (
            f"rank {place.rank} was sent away by the checks that rank 0's machine serves on "
            f"{place.master}:{port}; set the same {KEY} on all machines"
        )
    return (
        f"rank {place.rank} found no way to the checks, which rank 0's machine serves on "
        f"{place.master}:{port}: {error}; let this port through"
    )


def _address_to_serve(place: RankPlace) -> str:
    """That which all ranks use towards rank 0, or all addresses if its name leads elsewhere
    on other machines."""
    own = own_address(place.master) or ""
    return "" if is_loopback(own) and place.ranks > place.local_ranks else own


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
