"""Reads what `py-spy dump --pid PID` prints, with or without `--native` and `--locals`.

Used for ranks that left no black box: where the process was. Which rank it was follows from the
process's number, if a dump of that rank tells it, or from the last number in the file's name.
"""

from __future__ import annotations

import re

from phalanx.explain.program_lines import MOST_FRAMES, program_lines
from phalanx.explain.rank_dump import ThreadStack

_PROCESS = re.compile(r"^Process (\d+):", re.MULTILINE)
_THREAD = re.compile(r'^Thread (?:0x)?[\da-fA-F]+ \(([^)]*)\)(?:: "([^"]*)")?')
_FRAME = re.compile(r"^ {4}(\S.*?) \((.+?)(?::(\d+))?\)$")


def is_pyspy(text: str) -> bool:
    return _PROCESS.search(text[:4096]) is not None and "\nThread " in text


def read_pyspy(text: str) -> tuple[int, list[ThreadStack]]:
    """The process's number and its threads."""
    process = _PROCESS.search(text)
    found: list[ThreadStack] = []
    name, frames = None, list[tuple[str, int, str]]()
    for line in [*text.splitlines(), 'Thread 0 (end): "end"']:
        thread = _THREAD.match(line)
        if thread is not None:
            if name is not None:
                found.append(_stack(name, frames))
            name, frames = thread[2] or "", []
            continue
        frame = _FRAME.match(line)
        if frame is not None and len(frames) < MOST_FRAMES:
            frames.append((frame[2], int(frame[3] or 0), frame[1]))
    return int(process[1]) if process is not None else 0, found


def _stack(name: str, frames: list[tuple[str, int, str]]) -> ThreadStack:
    lines = tuple(reversed(program_lines(frames)))
    doing = frames[0][2] if frames else ""
    return ThreadStack(name, lines, is_main=name == "MainThread", doing=doing)
