"""The process that is torch's launcher: `python -m phalanx.engines.torchrun.agent OPTIONS`.

Started by `torchrun_launcher.py`, which stays between it and the user. Runs
`torch.distributed.run` as torchrun does, tells the launcher which ranks ended how, and ends
together with it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import secrets
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from torch.distributed import run as _launcher
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import LAUNCHER
from phalanx.engines.serialization import socket_wire
from phalanx.engines.torchrun.launcher_messages import (
    VARIABLE,
    Base,
    Exits,
    Hello,
    connect,
    read_base,
)

launcher: Any = _launcher  # torch leaves it without types
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def main(arguments: list[str]) -> int:
    base = read_base()
    os.environ[VARIABLE] = base.export()  # for the ranks
    _end_with_launcher()
    _name_meetings(base)
    sys.argv[0] = "torchrun"
    try:
        _run(base, arguments)
    except ChildFailedError as error:
        _tell(base, Exits({rank: each.exitcode for rank, each in error.failures.items()}))
        print(error, file=sys.stderr)
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    except (ValueError, AssertionError) as error:  # what it was given
        print(f"phalanx: torch's launcher: {error}", file=sys.stderr)
        return 2
    except RendezvousError as error:
        reason = str(error.__cause__ or error) or "not all machines came to the meeting in time"
        print(f"phalanx: torch's launcher: {type(error).__name__}: {reason}", file=sys.stderr)
        return 1
    return 0


def _run(base: Base, arguments: list[str]) -> None:
    parser = launcher.get_args_parser()
    parser.error = _refuse
    try:
        # Of two the last counts: that of the user.
        launcher.run(parser.parse_args([f"--log-dir={base.logs}", *arguments]))
    finally:
        shutil.rmtree(base.logs, ignore_errors=True)


def _name_meetings(base: Base) -> None:
    """Tell the ranks which meeting of the machines they came out of: the store that a meeting
    gives to its machines is new each time, and the first one writes a name into it."""
    meet = DynamicRendezvousHandler.next_rendezvous

    def next_rendezvous(handler: DynamicRendezvousHandler) -> RendezvousInfo:
        info = meet(handler)
        name = info.store.compare_set("phalanx meeting", "", secrets.token_hex(8))
        os.environ[VARIABLE] = replace(base, meeting=name.decode()).export()
        return info

    put_in(LAUNCHER, [(DynamicRendezvousHandler, "next_rendezvous", next_rendezvous)])


def _refuse(message: str) -> NoReturn:
    """Without the list of all options that argparse would print."""
    raise ValueError(message)


def _end_with_launcher() -> None:
    """By a signal that torch's launcher handles: it ends the ranks first."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)


def _tell(base: Base, message: Exits) -> None:
    with suppress(OSError), connect(base, Hello(base.token, "agent", os.getpid())) as end:
        control = Connection(end.detach())
        socket_wire.send(control, pickle.dumps(message))
        control.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
