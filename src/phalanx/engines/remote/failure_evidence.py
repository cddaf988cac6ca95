"""What ranks that failed left: errors that travelled, exit statuses, lines on standard error.

Used by the engines whose ranks are processes, and by the doors that show what their ranks
raised. Pure functions; must never talk to a rank.
"""

from __future__ import annotations

import linecache
import os
import pickle
import re
import signal
from collections.abc import Iterable, Sequence

from phalanx import callsite
from phalanx.backend.rank_errors import InvalidCallError
from phalanx.engines.remote.control_messages import Raised
from phalanx.engines.serialization.serialization import is_same_text
from phalanx.errors import PhalanxError, RankDied, VerdictError
from phalanx.model import RankView, Site
from phalanx.report.calls import call_text

Failure = Raised | RankDied

_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection (was )?(closed|lost|refused)"
    r"|failed to recv|socket (error|closed)|recvvalue failed|sendbytes failed",
    re.IGNORECASE,
)
"""What Gloo, NCCL and the stores say when another rank's process is gone."""

_CPP_FRAMES = re.compile(
    r"frame #\d+: |<omitting python frames>|Exception raised from .*\(most recent call first\):"
    r"|\[[WE]\d{4} .*\] \[c10d\] (recv|send)\w+ failed on SocketImpl"
)

_FAULT = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')


class RemoteTraceback(Exception):
    """The traceback in the rank's process, as text. Shown as the cause of its error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def precedence(
    failed: tuple[float, int, Failure], found: VerdictError | None = None
) -> tuple[bool, bool, float]:
    """What comes first is the cause. `found` is a verdict of the referee, which goes before
    what it causes."""
    when, _, failure = failed
    follows = is_lost_peer(failure) or (found is not None and is_consequence(failure))
    return follows, isinstance(failure, Raised), when


def is_consequence(failure: Failure) -> bool:
    """Whether calls that do not fit together may have led to this."""
    if isinstance(failure, RankDied):
        return failure.signal == "SIGABRT"  # what Gloo does about it
    return is_lost_peer(failure)


def is_lost_peer(failure: Failure) -> bool:
    return isinstance(failure, Raised) and _LOST_PEER.search(failure.message) is not None


def is_broken_off(failure: Failure) -> bool:
    """Whether an operation of the backend failed for what other ranks did or did not do."""
    if not isinstance(failure, Raised):
        return False
    return is_lost_peer(failure) or "Timed out waiting" in failure.message


def death(status: int, stderr: Iterable[str], view: RankView | None = None) -> RankDied:
    """`view` is what the referee knew of the rank."""
    code = os.waitstatus_to_exitcode(status)
    name = _signal_name(-code) if code < 0 else None
    lines = _readable(stderr)
    last = None if view is None or written_stack(lines) else _last_seen(view)
    return RankDied(code=code, signal=name, stderr=lines, last=last)


def _last_seen(view: RankView) -> str | None:
    """For a rank that left no stack: its last call."""
    waits = view.status == "waiting" and view.wait is not None
    op = view.wait.op if waits and view.wait is not None else view.last
    if op is None:
        return None
    number = "" if op.number is None else f" (call #{op.number})"
    where = "" if op.site is None else f" at {op.site}"
    return f"last seen {'in' if waits else 'after'} {call_text(op)}{number}{where}"


def _readable(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if line.strip() and not _is_noise(line))


def tidied(text: str) -> str:
    """What a rank of a run that failed wrote to standard error, without what says nothing."""
    return "".join(line for line in text.splitlines(keepends=True) if not _is_noise(line))


def _is_noise(line: str) -> bool:
    """What Python writes of our own frames, and of modules, when a fault kills it, and torch of
    its C++ frames, when it loses the connection to a rank that died."""
    found = _FAULT.match(line.rstrip("\n"))
    return (
        line.startswith("Extension modules: ")
        or (found is not None and callsite.is_own_file(found["file"]))
        or (found is not None and found["file"] == "<string>")
        or _CPP_FRAMES.match(line) is not None
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def restored(failure: Failure) -> tuple[BaseException, Site | None]:
    if isinstance(failure, RankDied):
        return failure, _fault_site(failure.stderr)
    error = _unpickled(failure)
    if error is None:
        # A stand-in of the same name and text, so that the report is the same.
        error = type(failure.kind, (PhalanxError,), {"__module__": "phalanx"})(failure.message)
    error.__cause__ = RemoteTraceback(failure.trace)
    if failure.invalid is not None:
        # Ours make theirs of frames, which have stayed in the rank.
        own = isinstance(error, InvalidCallError)
        setattr(error, "_verdict" if own else "verdict", failure.invalid)
    return error, failure.site


def _unpickled(failure: Raised) -> BaseException | None:
    if failure.error is None:
        return None
    try:
        error = pickle.loads(failure.error)
        same = is_same_text(str(error), failure.message)
        same = same and type(error).__name__ == failure.kind
    except Exception:
        return None
    return error if same and isinstance(error, BaseException) else None


def _fault_site(lines: Sequence[str]) -> Site | None:
    """The innermost user line of the stack that Python writes when it is killed by a fault."""
    stack = written_stack(lines)
    return stack[-1] if stack else None


def written_stack(lines: Iterable[str]) -> tuple[Site, ...]:
    """The user's part of the last stack that Python wrote by itself, innermost line last."""
    stack: list[Site] = []
    for line in lines:
        if "(most recent call first)" in line:
            stack.clear()
        found = _FAULT.match(line)
        if found is not None and not callsite.is_library_file(found["file"]):
            number = int(found["line"])
            source = linecache.getline(found["file"], number).strip()
            shown = callsite.shown_path(found["file"])
            stack.append(Site(shown, number, found["function"], source))
    return tuple(reversed(stack))
