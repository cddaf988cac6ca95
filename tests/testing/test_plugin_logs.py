"""What the plugin puts in place of pytest's own way to collect log records does the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key

from phalanx.testing.pytest_private_logs import LogsOfPhase


class Item:
    def __init__(self) -> None:
        self.stash: dict[Any, Any] = {caplog_records_key: {}}
        self.sections: list[tuple[str, str, str]] = []

    def add_report_section(self, when: str, kind: str, text: str) -> None:
        self.sections.append((when, kind, text))


class Plugin:
    """As pytest's, as far as it is used."""

    log_level: int | None = None

    def __init__(self) -> None:
        self.caplog_handler, self.report_handler = LogCaptureHandler(), LogCaptureHandler()
        self.asked: list[str] = []

    @contextmanager
    def _runtest_for(self, item: Any, when: str) -> Iterator[None]:
        self.asked.append(when)
        yield
        self.asked.append("end")


class Odd(logging.Logger):
    def addHandler(self, handler: logging.Handler) -> None:  # noqa: N802
        super().addHandler(handler)


@pytest.fixture
def quiet() -> Iterator[logging.Logger]:
    logger = logging.getLogger("a logger that passes nothing on")
    logger.propagate = False
    yield logger
    logger.propagate = True


def test_records_of_all_loggers_are_collected_and_no_handler_stays(quiet) -> None:
    plugin, item = Plugin(), Item()
    before = list(logging.root.handlers), list(quiet.handlers)
    with LogsOfPhase(plugin, item, "call"):
        quiet.warning("one")
        logging.getLogger("another").warning("two")
        assert item.stash[caplog_handler_key] is plugin.caplog_handler
    assert (logging.root.handlers, quiet.handlers) == before
    records = item.stash[caplog_records_key]["call"]
    assert [each.getMessage() for each in records] == ["one", "two"]
    assert item.sections == [("call", "log", "one\ntwo")]
    with LogsOfPhase(plugin, item, "teardown"):
        pass
    assert item.stash[caplog_records_key]["teardown"] == []
    assert len(records) == 2


def test_an_error_inside_passes_and_no_handler_stays(quiet) -> None:
    item, before = Item(), list(quiet.handlers)
    with pytest.raises(ZeroDivisionError), LogsOfPhase(Plugin(), item, "call"):
        quiet.warning("before")
        raise ZeroDivisionError
    assert item.sections == [("call", "log", "before")]
    assert quiet.handlers == before


def test_levels_and_other_classes_of_loggers_are_left_to_pytest(monkeypatch) -> None:
    plugin = Plugin()
    plugin.log_level = logging.INFO
    with LogsOfPhase(plugin, Item(), "setup"):
        assert plugin.asked == ["setup"]
    assert plugin.asked == ["setup", "end"]
    odd = Odd("odd")
    odd.propagate = False
    monkeypatch.setitem(logging.root.manager.loggerDict, "odd", odd)
    plugin = Plugin()
    with LogsOfPhase(plugin, Item(), "call"):
        assert plugin.asked == ["call"]
