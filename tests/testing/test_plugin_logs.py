"""What the plugin puts in place of pytest's own way to collect log records does the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key

import phalanx
from phalanx.testing.pytest_compat.pytest_private_logs import (
    KeptHandlers,
    LogsOfPhase,
    _Counting,
)


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
        self.kept: Any = None

    @contextmanager
    def _runtest_for(self, item: Any, when: str) -> Iterator[None]:
        self.asked.append(when)
        yield
        self.asked.append("end")


class Odd(logging.Logger):
    def addHandler(self, handler: logging.Handler) -> None:  # noqa: N802
        super().addHandler(handler)


@pytest.fixture(autouse=True)
def counted(monkeypatch) -> None:
    """As `quicken_logs` has it, unless this run of pytest has it by itself."""
    if "propagate" not in vars(logging.Logger):
        monkeypatch.setattr(logging.Logger, "propagate", _Counting(), raising=False)


@pytest.fixture
def quiet() -> Iterator[logging.Logger]:
    logger = logging.getLogger("a logger that passes nothing on")
    logger.propagate = False
    yield logger
    logger.propagate = True
    logger.handlers.clear()


def phase(plugin: Plugin, item: Item, when: str) -> LogsOfPhase:
    plugin.kept = plugin.kept or KeptHandlers(plugin)
    return LogsOfPhase(plugin, plugin.kept, item, when)


def test_records_of_all_loggers_are_collected(quiet) -> None:
    plugin, item = Plugin(), Item()
    before = list(logging.root.handlers), list(quiet.handlers)
    with phase(plugin, item, "call"):
        quiet.warning("one")
        logging.getLogger("another").warning("two")
        assert item.stash[caplog_handler_key] is plugin.caplog_handler
    records = item.stash[caplog_records_key]["call"]
    assert [each.getMessage() for each in records] == ["one", "two"]
    assert item.sections == [("call", "log", "one\ntwo")]
    with phase(plugin, item, "teardown"):
        pass
    assert item.stash[caplog_records_key]["teardown"] == []
    assert len(records) == 2
    assert logging.root.handlers == before[0]
    plugin.kept.end()
    assert (logging.root.handlers, quiet.handlers) == before


def test_nothing_is_collected_between_phases(quiet) -> None:
    plugin, item = Plugin(), Item()
    with phase(plugin, item, "setup"):
        plugin.caplog_handler.setLevel(logging.ERROR)  # as `caplog.set_level` does
    quiet.error("between")
    logging.getLogger("another").error("between")
    records = item.stash[caplog_records_key]
    assert records["setup"] == []
    with phase(plugin, item, "call"):
        quiet.warning("below")
        quiet.error("inside")
    assert [each.getMessage() for each in records["call"]] == ["inside"]
    assert plugin.report_handler.stream.getvalue() == "below\ninside\n"
    plugin.kept.end()
    assert plugin.caplog_handler.level == logging.ERROR
    assert plugin.report_handler.level == logging.NOTSET


@pytest.mark.parametrize("change", ["clear", "replace", "exchange", "pass on", "another"])
def test_what_a_test_does_to_loggers_is_seen_by_the_next_phase(quiet, change) -> None:
    plugin, item = Plugin(), Item()
    other = logging.getLogger(f"another that passes nothing on ({change})")
    with phase(plugin, item, "setup"):
        if change == "clear":
            quiet.handlers.clear()
        elif change == "replace":
            quiet.handlers = [logging.NullHandler()]
        elif change == "exchange":
            quiet.handlers[:] = [logging.NullHandler() for _ in quiet.handlers]
        elif change == "pass on":
            quiet.propagate = True
        else:
            other.propagate = False
    with phase(plugin, item, "call"):
        quiet.warning("one")
        other.warning("two")
    records = item.stash[caplog_records_key]["call"]
    assert [each.getMessage() for each in records] == ["one", "two"]
    plugin.kept.end()
    for logger in (quiet, other):
        assert not {plugin.caplog_handler, plugin.report_handler} & set(logger.handlers)
    other.propagate = True


def test_an_error_inside_passes(quiet) -> None:
    item, plugin, before = Item(), Plugin(), list(quiet.handlers)
    with pytest.raises(ZeroDivisionError), phase(plugin, item, "call"):
        quiet.warning("before")
        raise ZeroDivisionError
    assert item.sections == [("call", "log", "before")]
    plugin.kept.end()
    assert quiet.handlers == before


def test_levels_and_other_classes_of_loggers_are_left_to_pytest(quiet, monkeypatch) -> None:
    plugin, before = Plugin(), list(quiet.handlers)
    with phase(plugin, Item(), "setup"):
        assert quiet.handlers != before
    plugin.log_level = logging.INFO
    with phase(plugin, Item(), "call"):
        assert plugin.asked == ["call"]
        assert quiet.handlers == before
    assert plugin.asked == ["call", "end"]
    odd = Odd("odd")
    odd.propagate = False
    monkeypatch.setitem(logging.root.manager.loggerDict, "odd", odd)
    plugin = Plugin()
    with phase(plugin, Item(), "call"):
        assert plugin.asked == ["call"]


def test_changes_that_nobody_counts_are_seen(quiet, monkeypatch) -> None:
    """A world that was open when pytest began takes its own attribute with it."""
    monkeypatch.delattr(logging.Logger, "propagate")
    plugin, item = Plugin(), Item()
    quiet.propagate = True
    with phase(plugin, item, "setup"):
        quiet.propagate = False
    with phase(plugin, item, "call"):
        quiet.warning("one")
    assert len(item.stash[caplog_records_key]["call"]) == 1
    plugin.kept.end()


def test_what_counts_is_gone_after_the_run_also_with_a_world_open_across_its_end(
    monkeypatch,
) -> None:
    monkeypatch.delattr(logging.Logger, "propagate")
    counting = _Counting()
    logging.Logger.propagate = counting
    with phalanx.World(ranks=2) as world:
        counting.end()
        logger = logging.getLogger("a logger of two ranks")

        def own() -> bool:
            logger.propagate = dist.get_rank() == 0
            dist.barrier()
            return logger.propagate

        assert world.run(own) == [True, False]
        assert logger.propagate is True
    logger.propagate = True
    assert "propagate" not in vars(logging.Logger)
