"""A real browser for tests: chromium without a window, driven over its DevTools protocol.

Only the standard library. Commands and events are JSON objects with a null byte after each,
on two pipes that the browser has as descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PATIENCE = 45.0
"""Seconds after which the browser counts as stuck."""


def _pipe_above(least: int = 20) -> tuple[int, int]:
    """A pipe whose descriptors are not those that the browser is to have."""
    ends = os.pipe()
    above = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, least) for end in ends]
    for end in ends:
        os.close(end)
    return above[0], above[1]


class Browser:
    """One browser process with one page. What the page reports as wrong is in `errors`."""

    def __init__(self, folder: Path, *, width: int = 1200, height: int = 800) -> None:
        assert CHROMIUM is not None
        commands, self._commands = _pipe_above()
        self._answers, answers = _pipe_above()
        self.size = (width, height)
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{commands} 4>&{answers}',
                "browser",
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={folder}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._read = b""
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session = None
        try:
            with contextlib.suppress(OSError, RuntimeError):
                self.send("Browser.close")
            os.close(self._commands)
            os.close(self._answers)
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # -- the protocol ----------------------------------------------------------------------

    def send(self, method: str, **parameters: Any) -> Any:
        """Do a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = os.read(self._answers, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(facts["exceptionDetails"])[:2000])
        elif event == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning"):
            self.errors.append(json.dumps(facts["args"])[:2000])
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(facts["entry"])[:2000])
        elif event == "Page.javascriptDialogOpening":
            self.errors.append("a dialog: " + json.dumps(facts)[:2000])

    # -- what a test does ------------------------------------------------------------------

    def open(self, page: Path, *, dark: bool = False) -> None:
        """Open a page of ours from disk, and wait until all of it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=page.as_uri())
        self.wait("location.href !== 'about:blank' && window.phalanx?.state().ready")

    def evaluate(self, code: str) -> Any:
        """The value of an expression in the page; waits if it is a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait(self, code: str) -> None:
        """Until an expression is true."""
        self.until(lambda: bool(self.evaluate(f"Boolean({code})")), code)

    def until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}; the page says: {self.errors}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        found: str = self.evaluate(f"document.querySelector({selector!r}).textContent")
        return found

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    def key(self, key: str, *, shift: bool = False) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                modifiers=8 if shift else 0,
                **(text if kind == "keyDown" else {}),
            )

    def resize(self, width: int, height: int) -> None:
        self.size = (width, height)
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
