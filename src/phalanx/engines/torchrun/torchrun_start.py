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

from phalanx.engines.machine_limits import limits_named
from phalanx.engines.referee.referee_key import KEY, read_key
from phalanx.engines.torchrun.launcher_messages import VARIABLE, Base, listen
from phalanx.model import Tally, Verdict
from phalanx.options import Options

PATIENCE = 5.0
"""Seconds that torch's launcher has to end when told to; then it is killed."""


@dataclass(frozen=True, kw_only=True)
class TorchrunSettings(Options):
    """The options, and what the command line adds."""

    ranks: int = 0
    engine: str = "torchrun"
    launcher_options: Sequence[str]
    """The options of torch's launcher."""
    program: Sequence[str]
    """What the ranks run: "script" or "module", its name, its arguments."""
    on_world: Callable[[int, range], Any]
    """Called with how many ranks there are, and with those of this machine."""
    on_output: Callable[[int, str, str], Any]
    """Called with a rank, the stream ("out" or "err") and what the rank printed."""
    on_notice: Callable[[str], Any]
    """Called with each line that torch's launcher prints."""
    on_tick: Callable[[], Any]
    on_findings: Callable[[Sequence[Verdict]], Any] | None = None
    on_tally: Callable[[Tally], Any] | None = None
    on_journal: Callable[[Any], Any] | None = None
    """These three are called on the machine of rank 0 only; the last when ranks start, and
    again when they are started anew."""
    on_watch: Callable[[Any], Any] | None = None
    """Called at first, with what can say at a tick what ranks do."""
    raw_output: bool = False
    """Whether torch's launcher writes the ranks' output to files itself."""
    meeting: Callable[[], str] | None = None
    """Says what the ranks wait for until they start, if that may take long."""
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
        with limits_named("torch's launcher could not be started"):
            base = _new_base(settings, stack)
            listener = stack.enter_context(listen(base.address))
            listener.setblocking(False)
            agent = _start_agent(settings, base)
        try:
            yield Started(base, listener, agent)
        finally:
            if agent.poll() is None:  # interrupted before there was anybody to end it well
                agent.terminate()
                try:
                    agent.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    agent.kill()
                    agent.wait()


def _new_base(settings: TorchrunSettings, stack: ExitStack) -> Base:
    return Base(
        address=_new_address(stack),
        token=secrets.token_hex(16),
        logs=stack.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-")),
        checks=settings.checks,
        own_output=not settings.raw_output,
        key=read_key({**os.environ, **(settings.environ or {})}),
        timed=settings.timeout is not None,
    )


def _new_address(stack: ExitStack) -> str:
    """A name that is in no folder, where there are such names. Everybody can read it, so it
    tells nothing."""
    if sys.platform.startswith("linux"):
        return f"@phalanx-{os.getpid()}-{secrets.token_hex(8)}"
    folder = tempfile.mkdtemp(prefix="phalanx-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, "launcher")


def _start_agent(settings: TorchrunSettings, base: Base) -> subprocess.Popen[bytes]:
    environ = {**os.environ, **(settings.environ or {}), VARIABLE: base.export()}
    environ.pop(KEY, None)
    package = "phalanx.engines.torchrun"
    line = [*settings.launcher_options, "-m", f"{package}.torchrun_rank", *settings.program]
    pipe = None if settings.raw_output else subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", f"{package}.agent", *line],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,  # Ctrl-C is for us, and we end the rest
    )
