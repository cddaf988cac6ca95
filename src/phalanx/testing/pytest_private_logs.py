"""pytest's collecting of log records, made quick. Private names of pytest, as in
`pytest_private.py`; used by `plugin.py` when there are tests on ranks. Checked with 9.2.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from _pytest.logging import caplog_handler_key, caplog_records_key, catching_logs


class LogsOfPhase:
    """Gives pytest's two handlers all records while one phase of a test runs. From 9.2 on
    pytest hands each of them to every logger that passes nothing on, one lock each, and takes
    it away again: where torch is, which has fifty of these, that is a third of pytest's own
    time. This looks for the loggers once for both, and calls nothing for each. Where more is
    to do than to change a list, with a level or for loggers of other classes, it is left to
    pytest."""

    __slots__ = ("_item", "_loggers", "_others", "_plugin", "_when")

    def __init__(self, plugin: Any, item: Any, when: str) -> None:
        self._plugin = plugin
        self._item = item
        self._when = when
        self._loggers: list[logging.Logger] = []
        self._others: Any = None

    def __enter__(self) -> None:
        plugin, item = self._plugin, self._item
        loggers = [logging.root, *_without_propagation()]
        if plugin.log_level is not None or not _are_plain(loggers):
            self._others = type(plugin)._runtest_for(plugin, item, self._when)
            self._others.__enter__()
            return
        self._loggers = loggers
        first, second = plugin.caplog_handler, plugin.report_handler
        for logger in loggers:
            handlers = logger.__dict__["handlers"]
            if first not in handlers:
                handlers.append(first)
            if second not in handlers:
                handlers.append(second)
        first.reset()
        second.reset()
        item.stash[caplog_records_key][self._when] = first.records
        item.stash[caplog_handler_key] = first

    def __exit__(self, *error: Any) -> Any:
        if self._others is not None:
            return self._others.__exit__(*error)
        plugin = self._plugin
        first, second = plugin.caplog_handler, plugin.report_handler
        text = second.stream.getvalue().strip()
        self._item.add_report_section(self._when, "log", text)
        for logger in self._loggers:
            handlers = logger.__dict__["handlers"]
            if second in handlers:
                handlers.remove(second)
            if first in handlers:
                handlers.remove(first)
        return None


def _without_propagation() -> list[Any]:
    """Looked up where it is kept, because during runs on ranks reading the attributes of
    loggers takes its time."""
    loggers = logging.root.manager.loggerDict.values()
    return [each for each in loggers if not each.__dict__.get("propagate", True)]


def _are_plain(loggers: Iterable[logging.Logger]) -> bool:
    """Whether adding a handler to each of them does no more than that."""
    plain = logging.Logger
    kinds: set[Any] = set(map(type, loggers))
    return all(
        kind.addHandler is plain.addHandler and kind.removeHandler is plain.removeHandler
        for kind in kinds
    )


def quicken_logs(config: Any) -> None:
    """For this run of pytest, whose plugin it is. Before 9.2 there is no need."""
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None and "attached_loggers" in getattr(catching_logs, "__slots__", ()):
        plugin._runtest_for = partial(LogsOfPhase, plugin)
