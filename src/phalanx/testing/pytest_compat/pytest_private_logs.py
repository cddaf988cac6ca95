"""pytest's collecting of log records, made quick. Private names of pytest, as in
`pytest_private.py`; used by `rank_hooks.py` around tests on ranks. Checked with 9.2.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from operator import itemgetter
from typing import Any

from _pytest.logging import caplog_handler_key, caplog_records_key, catching_logs

from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import PYTEST
from phalanx.emulation.state.logs import Counted, changes

MUTED = sys.maxsize
"""A level that no record has."""


class KeptHandlers:
    """pytest's two handlers, at loggers that pass nothing on, for as long as tests run.

    From 9.2 on pytest hands each of them to every such logger in each phase of a test, one lock
    each, and takes it away again: where torch is, which has fifty of these, that is a third of
    pytest's own time. Here they stay, between phases with a level that nothing reaches. (So a
    logger that has no handler of its own and passes nothing on stays silent there.)
    """

    def __init__(self, plugin: Any) -> None:
        self.both = (plugin.caplog_handler, plugin.report_handler)
        self._levels = [handler.level for handler in self.both]
        self._lists: list[list[logging.Handler]] = []
        self._known: list[list[logging.Handler]] = []
        """What is in each of them, ours included."""
        self._quiet = False
        self.loggers = _Loggers()

    def speak(self) -> None:
        """A phase begins: they are wherever they should be, and hear everything."""
        self.restore_levels()
        lists = self.loggers.handlers()
        if lists != self._known:
            self.take_away()
            for handlers in lists:
                handlers += [each for each in self.both if each not in handlers]
            self._known = list(map(list, lists))
        self._lists = lists
        at_root = vars(logging.root)["handlers"]
        at_root += [each for each in self.both if each not in at_root]

    def mute(self) -> None:
        """It is over."""
        at_root = vars(logging.root)["handlers"]
        for index, handler in enumerate(self.both):
            self._levels[index] = handler.level
            handler.level = MUTED
            if handler in at_root:
                at_root.remove(handler)
        self._quiet = True

    def restore_levels(self) -> None:
        if self._quiet:
            self._quiet = False
            for handler, level in zip(self.both, self._levels, strict=True):
                handler.level = level

    def take_away(self) -> None:
        for handlers in self._lists:
            for each in self.both:
                if each in handlers:
                    handlers.remove(each)
        self._lists, self._known = [], []

    def end(self) -> None:
        self.take_away()
        self.restore_levels()


class LogsOfPhase:
    """Gives pytest's two handlers all records while one phase of a test runs. Where more is to
    do than to change a list, with a level or for loggers of other classes, it is left to
    pytest."""

    __slots__ = ("_item", "_kept", "_others", "_plugin", "_when")

    def __init__(self, plugin: Any, kept: KeptHandlers, item: Any, when: str) -> None:
        self._plugin = plugin
        self._kept = kept
        self._item = item
        self._when = when
        self._others: Any = None

    def __enter__(self) -> None:
        plugin, item, kept = self._plugin, self._item, self._kept
        kept.loggers.look()
        # A test that was refused before pytest's own setup has no records yet.
        records = item.stash.setdefault(caplog_records_key, {})
        if plugin.log_level is not None or not kept.loggers.are_plain():
            kept.end()
            self._others = type(plugin)._runtest_for(plugin, item, self._when)
            self._others.__enter__()
            return
        first, second = kept.both
        first.reset()
        second.reset()
        kept.speak()
        records[self._when] = first.records
        item.stash[caplog_handler_key] = first

    def __exit__(self, *error: Any) -> Any:
        if self._others is not None:
            return self._others.__exit__(*error)
        self._kept.mute()
        text = self._kept.both[1].stream.getvalue().strip()
        self._item.add_report_section(self._when, "log", text)
        return None


class _Loggers:
    """All loggers, where each keeps its attributes, and whether adding a handler to one does no
    more than that. There are hundreds, so they are looked through when one of them changed."""

    def __init__(self) -> None:
        self._seen = (-1, -1)
        self._kinds: set[Any] = {logging.RootLogger}
        self._quiet: list[dict[str, Any]] = []

    def look(self) -> None:
        """Note what has come, or changed, since the last time."""
        now = (changes.count, len(logging.root.manager.loggerDict))
        counts = isinstance(vars(logging.Logger).get("propagate"), Counted)
        if now != self._seen or not counts:
            self._seen = now
            loggers = logging.root.manager.loggerDict.values()
            made = [each for each in loggers if "propagate" in vars(each)]
            self._kinds = {type(logging.root), *map(type, made)}
            self._quiet = [vars(each) for each in made if not vars(each)["propagate"]]

    def are_plain(self) -> bool:
        plain = logging.Logger
        return all(
            kind.addHandler is plain.addHandler and kind.removeHandler is plain.removeHandler
            for kind in self._kinds
        )

    def handlers(self) -> list[list[logging.Handler]]:
        """Those of loggers that pass nothing on."""
        return list(map(_handlers_of, self._quiet))


_handlers_of = itemgetter("handlers")
PROPAGATE = "propagate"


class _Counting(Counted):
    """`propagate` of loggers while no ranks run, which have their own way to count."""

    def __init__(self) -> None:
        self._over = False
        self._take_out = put_in(PYTEST, [(logging.Logger, PROPAGATE, self)])

    def __set__(self, logger: logging.Logger, value: Any) -> None:
        changes.count += 1
        vars(logger)[PROPAGATE] = value
        if self._over:
            self.end()

    def end(self) -> None:
        """A world that is still open has its own attribute there, and puts this one back when
        it closes: then it goes with the next change."""
        self._over = True
        if vars(logging.Logger).get(PROPAGATE) is self:
            self._take_out()


class QuickLogs:
    """Lets pytest's own plugin collect log records quickly, from `begin` to `end`. Does nothing
    before pytest 9.2, which has no need."""

    def __init__(self, config: Any) -> None:
        plugin = config.pluginmanager.get_plugin("logging-plugin")
        if "attached_loggers" not in getattr(catching_logs, "__slots__", ()):
            plugin = None
        self._plugin = plugin
        self._kept: KeptHandlers | None = None
        self._counting: _Counting | None = None

    def begin(self) -> None:
        plugin = self._plugin
        if plugin is None:
            return
        self._kept = KeptHandlers(plugin)
        plugin._runtest_for = partial(LogsOfPhase, plugin, self._kept)
        if PROPAGATE not in vars(logging.Logger):  # else somebody around us counts
            self._counting = _Counting()

    def end(self) -> None:
        if self._kept is not None:
            self._kept.end()
            del self._plugin._runtest_for
            self._kept = None
        if self._counting is not None:
            self._counting.end()
            self._counting = None
