"""Hand a script over to torch's launcher: start it, then see what comes of it.

Used by the command line, once per machine. To import torch takes seconds, and the agent
(`agent.py`) has to, so it is started first and what needs torch here is imported meanwhile.
Must never import torch itself.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from phalanx.engines.torchrun.launcher_messages import VARIABLE, Base, listen
from phalanx.kinds import ALL
from phalanx.model import Tally, Verdict


@dataclass(frozen=True)
class TorchrunSettings:
    """What was asked for. `options` are for torch's launcher, `program` says what the ranks
    run. `on_world` hears how many ranks there are and which are here, `on_output` what they
    print, `on_notice` what torch's launcher says; `on_findings` and `on_tally` what was found
    and checked, on the machine of rank 0. `raw_output`: it deals with output itself.
    `meeting` says what the ranks wait for until they start, if that may take long.
    """

    options: Sequence[str]
    program: Sequence[str]
    on_world: Callable[[int, range], Any]
    on_output: Callable[[int, str, str], Any]
    on_notice: Callable[[str], Any]
    on_tick: Callable[[], Any]
    checked: bool = True
    kinds: frozenset[str] = ALL
    profile: str | None = None
    strict: bool = False
    on_findings: Callable[[Sequence[Verdict]], Any] | None = None
    on_tally: Callable[[Tally], Any] | None = None
    raw_output: bool = False
    meeting: Callable[[], str] | None = None
    timeout: float | None = None
    replay: str | None = None
    environ: Mapping[str, str] | None = None


def run_by_torchrun(settings: TorchrunSettings) -> bool:
    """Run it on this machine's ranks; whether a rank went about it as a distributed program.
    Raises what the other engines raise."""
    with _orderly_end(), _started(settings) as started:
        from phalanx.engines.torchrun.torchrun_launcher import Launch

        launch = Launch(settings, started)
        try:
            return launch.carry_out()
        finally:
            launch.close()


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM, with which clusters end jobs, ends the ranks first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Started:
    """A running agent, and where it and its ranks find us."""

    base: Base
    listener: socket.socket
    agent: subprocess.Popen[bytes]


@contextmanager
def _started(settings: TorchrunSettings) -> Iterator[Started]:
    with ExitStack() as stack:
        token = secrets.token_hex(16)
        base = Base(
            address=_new_address(token, stack),
            token=token,
            logs=stack.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-")),
            checked=settings.checked,
            kinds=sorted(settings.kinds),
            own_output=not settings.raw_output,
        )
        listener = stack.enter_context(listen(base.address))
        listener.setblocking(False)
        agent = _start_agent(settings, base)
        try:
            yield Started(base, listener, agent)
        finally:
            if agent.poll() is None:  # interrupted before there was anybody to end it well
                agent.terminate()
                agent.wait()


def _new_address(token: str, stack: ExitStack) -> str:
    """A name that is in no folder, where there are such names."""
    if sys.platform.startswith("linux"):
        return f"@phalanx-{os.getpid()}-{token[:8]}"
    folder = tempfile.mkdtemp(prefix="phalanx-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, "launcher")


def _start_agent(settings: TorchrunSettings, base: Base) -> subprocess.Popen[bytes]:
    environ = {**os.environ, **(settings.environ or {}), VARIABLE: base.export()}
    package = "phalanx.engines.torchrun"
    line = [*settings.options, "-m", f"{package}.rank", *settings.program]
    pipe = None if settings.raw_output else subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", f"{package}.agent", *line],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,  # Ctrl-C is for us, and we end the rest
    )
