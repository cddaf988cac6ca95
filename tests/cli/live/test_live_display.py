"""The table below the output: on a fake terminal, and of real runs on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.live.live_display import AboveTable, LiveDisplay, live_display
from phalanx.model import RankView, Snapshot
from phalanx.report.live.live_rows import RunState


def screen(text: str) -> list[str]:
    """The lines of a terminal that got this text: of its commands it knows ours only."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[[\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part.endswith("F") and part[0] == "\x1b":
            assert lines[-1] == "", "the cursor is below the table"
            lines[-int(part[2:-1]) - 1 :] = [""]  # all below is cleared next
        elif part[0] != "\x1b":
            lines[-1] = lines[-1][:column] + part
            column = len(lines[-1])
    return lines


class FakeWatch:
    steps = 0
    asking = False

    def ask(self) -> None:
        pass

    def has_answers(self) -> bool:
        return True

    def state(self, *, stacks: bool) -> RunState:
        self.steps += 1
        views = (RankView(0, "computing"), RankView(1, "sleeping"))
        return RunState(Snapshot(views), [self.steps] * 2, [0.0] * 2, asking=self.asking)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("phalanx.cli.live.live_display.has_rich", lambda: False)
    monkeypatch.setattr("phalanx.report.live.live_table.has_rich", lambda: False)
    terminal, now = Terminal(), [0.0]
    display = LiveDisplay(terminal, clock=lambda: now[0])
    watch = FakeWatch()
    display.watch(watch)

    def tick(seconds: float = 1.0) -> list[str]:
        now[0] += seconds
        display.tick()
        return screen(terminal.getvalue())

    return display, AboveTable(display, terminal), watch, tick


def test_output_scrolls_above_the_table(shown: Any) -> None:
    display, stream, _, tick = shown
    assert tick()[:3] == [
        "phalanx: 2 ranks, 1.0 s, 2 calls",
        "ranks  state     step  call  line  waits for  for",
        "0      running   1                            0.0 s",
    ]
    stream.write("hello\n")
    assert tick(0.06)[0] == "hello"
    stream.write("again\n")
    assert tick()[:3] == ["hello", "again", "phalanx: 2 ranks, 2.1 s, 4 calls"]
    display.close()
    assert screen(stream._original.getvalue()) == ["hello", "again", ""]


def test_a_question_is_left_alone_until_the_next_line(shown: Any) -> None:
    _, stream, watch, tick = shown
    tick()
    stream.write("(Pdb) ")
    assert tick() == tick() == ["(Pdb) "]
    stream.write("c\nmore\n")
    assert tick()[:2] == ["(Pdb) c", "more"]
    assert len(tick()) > 4
    watch.asking = True
    assert tick() == ["(Pdb) c", "more", ""]


def test_room_for_whoever_writes_without_the_stream(shown: Any) -> None:
    """As `input` does for its prompt, below the table that stands there."""
    _, stream, watch, tick = shown
    tick()
    with pytest.raises(OSError, match="fileno"):
        stream.fileno()
    stream._original.write("(Pdb) ")
    watch.asking = True
    assert tick(0.06) == tick() == ["(Pdb) "]


def test_a_forked_child_writes_past_the_table(shown: Any) -> None:
    display, stream, _, tick = shown
    tick()
    display.process = -1
    before = stream._original.getvalue()
    stream.write("from a child\n")
    assert stream._original.getvalue() == before + "from a child\n"


def test_ctrl_c_while_the_table_is_drawn_leaves_none(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of the output is wiped out with it, or twice."""
    display, stream, _, tick = shown
    stream.write("hello\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    for _ in range(2):  # as it comes, and as it goes
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(stream._original, "flush", interrupt)
            tick() if not display._drawn else display.close()
    assert screen(stream._original.getvalue()) == ["hello", ""]
    display.close()
    assert screen(stream._original.getvalue()) == ["hello", ""]


def test_nothing_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    before = sys.stdout
    with live_display() as display:
        assert display is None
        assert sys.stdout is before


PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(2)
for step in range(3):
    dist.all_reduce(t)
    print("step", step, flush=True)
    while step == 0 and dist.get_rank() == 0 and not os.path.exists("seen"):
        time.sleep(0.05)
print("no newline at the end", end="")
"""
WAITING = r"1, 2 +waiting +\d +all_reduce\(op=SUM\) #1 +train.py:6 +rank 0"
"""The row of the ranks that wait until the test has seen it."""


def run_on_terminal(
    command: list[str], folder: Path, *, interrupt: bool = False
) -> tuple[str, int]:
    """What `PROGRAM` writes to a terminal of 100 columns, and its exit status. When the table
    shows the waiting ranks Ctrl-C is pressed, or rank 0 may go on."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    program = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    data, shown = b"", False
    try:
        while piece := _read(ours):
            data += piece
            if not shown and re.search(WAITING, _STYLE.sub("", data.decode(errors="ignore"))):
                shown = True
                if interrupt:
                    program.send_signal(signal.SIGINT)
                else:
                    (folder / "seen").touch()
    finally:
        os.close(ours)
        program.kill() if program.poll() is None and not data else None
    return data.decode(), program.wait(30)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # the other end is closed
        return b""


_STYLE = re.compile(r"\x1b\[[\d;]*m")
PHALANX = [sys.executable, "-m", "phalanx", "run", "--live"]


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_real_run(engine: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    line = [*PHALANX, "-n", "3", "--engine", engine, "train.py"]
    text, status = run_on_terminal(line, tmp_path)
    assert status == 0, text
    seen = _STYLE.sub("", text)
    assert re.search(WAITING, seen)
    assert "3 ranks, " in seen
    left = [line.rstrip() for line in screen(seen) if not line.startswith("phalanx")]
    assert left == [
        "[0-2] step 0",
        "[0-2] step 1",
        "[0-2] step 2",
        "[0-2] no newline at the end",
        "",
    ]


def test_standard_output_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = [*PHALANX, "-n", "3", "train.py"]
    text, status = run_on_terminal(["sh", "-c", f"{shlex.join(words)} > out.txt"], tmp_path)
    assert status == 0
    seen = _STYLE.sub("", text)
    assert re.search(WAITING, seen)
    assert "step" not in re.sub(r"state +step", "", seen)
    assert (tmp_path / "out.txt").read_text().splitlines()[0] == "[0-2] step 0"


def test_ctrl_c_leaves_no_table(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    line = [*PHALANX, "-n", "3", "train.py"]
    text, status = run_on_terminal(line, tmp_path, interrupt=True)
    assert status == 130
    left = screen(_STYLE.sub("", text))
    assert not [line for line in left if line.startswith("ranks  state")]
    assert any("interrupted; each rank was at" in line for line in left)
