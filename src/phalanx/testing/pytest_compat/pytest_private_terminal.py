"""pytest's terminal at the place where it will write next. Checked with pytest 7.4 to 9.2."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any


class CursorLine:
    """Text after what pytest has written in the current line, which goes away again."""

    def __init__(self, config: Any, writer: Any) -> None:
        self._config = config
        self._writer = writer
        self._shown = 0

    @property
    def room(self) -> int:
        """Columns up to the end of the line, but for the last, where terminals differ."""
        return int(self._writer.fullwidth - self._writer.width_of_current_line - 1)

    def show(self, text: str) -> None:
        """In place of what was shown before; nothing of it stays for an empty text."""
        if not text and not self._shown:
            return
        capman = self._config.pluginmanager.get_plugin("capturemanager")
        with nullcontext() if capman is None else capman.global_and_fixture_disabled():
            file = self._writer._file
            blank = " " * max(0, self._shown - len(text))
            file.write("\b" * self._shown + text + blank + "\b" * len(blank))
            file.flush()
        self._shown = len(text)


def cursor_line(config: Any) -> CursorLine | None:
    """None where pytest writes to no terminal, as in workers of pytest-xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    writer = getattr(reporter, "_tw", None)
    if writer is None or not getattr(reporter, "isatty", False):
        return None
    return CursorLine(config, writer)
