"""The configuration of logging is looked up by rank from the first change on, not before."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.emulation.run_patches import patched
from phalanx.emulation.state import logs


def is_looked_up() -> bool:
    return hasattr(vars(logging.Logger)["level"], "__get__")


def test_reading_and_making_loggers_looks_nothing_up() -> None:
    def body() -> bool:
        made = logging.getLogger(f"made by rank {dist.get_rank()}")
        made.debug("not shown")
        return is_looked_up()

    with patched():
        assert phalanx.run(body, ranks=2) == [False, False]
        assert not is_looked_up()
    assert "level" not in vars(logging.Logger)


def test_a_change_by_one_rank_is_its_own_and_ends_with_the_run() -> None:
    logger = logging.getLogger("changed by one rank")

    def body() -> tuple[int, bool, bool]:
        assert not logger.isEnabledFor(logging.INFO)  # which the logger remembers
        dist.barrier()
        if dist.get_rank() == 0:
            logger.setLevel(logging.INFO)
            logger.propagate = False
        dist.barrier()
        return logger.level, logger.isEnabledFor(logging.INFO), logger.propagate

    with patched():
        changed, left = phalanx.run(body, ranks=2)
        assert changed == (logging.INFO, True, False)
        assert left == (logging.NOTSET, False, True)
        assert not logs.in_use and not is_looked_up()
        assert logger.level == logging.NOTSET and logger.propagate


def chosen() -> tuple[object, ...]:
    return (
        logging.getLogRecordFactory(),
        logging.getLoggerClass(),
        logging.getLevelName(25),
        logging.getLevelName(logging.INFO),
        vars(logging)["_levelToName"],
        vars(logging)["_nameToLevel"],
        vars(logging)["_logRecordFactory"],
        vars(logging)["_loggerClass"],
    )


def record_of(logger: logging.Logger) -> logging.LogRecord:
    return logger.makeRecord("n", 25, "file", 1, "message", (), None)


def test_record_factories_are_each_ranks_own() -> None:
    logger = logging.getLogger("with a factory")

    def body() -> list[object]:
        rank = dist.get_rank()
        before = logging.getLogRecordFactory()
        found: list[object] = [before is logging.LogRecord]

        def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = before(*args, **kwargs)
            record.rank = rank
            return record

        def look() -> None:
            found.append(getattr(record_of(logger), "rank", None))

        if rank < 2:
            logging.setLogRecordFactory(factory)
        dist.barrier()
        look()
        found.append((logging.getLogRecordFactory() is factory) == (rank < 2))
        return found

    before = chosen()
    assert phalanx.run(body, ranks=3) == [[True, 0, True], [True, 1, True], [True, None, True]]
    assert chosen() == before


def test_a_factory_that_the_caller_sets_holds_for_ranks_and_afterwards() -> None:
    def callers(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = logging.LogRecord(*args, **kwargs)
        record.made_by = "caller"
        return record

    def body() -> object:
        if dist.get_rank() == 0:
            logging.setLogRecordFactory(logging.LogRecord)
        dist.barrier()
        return getattr(record_of(logging.getLogger("any")), "made_by", None)

    logging.setLogRecordFactory(callers)
    try:
        assert phalanx.run(body, ranks=2) == [None, "caller"]
        assert logging.getLogRecordFactory() is callers
    finally:
        logging.setLogRecordFactory(logging.LogRecord)


def test_level_names_that_ranks_add_are_shared_and_go_with_the_run() -> None:
    def body() -> list[Any]:
        if dist.get_rank() == 0:
            logging.addLevelName(25, "NOTE")
        dist.barrier()
        logger = logging.getLogger("by name")
        logger.setLevel("NOTE")
        return [record_of(logger).levelname, logger.level, logging.getLevelName(25)]

    before = chosen()
    assert phalanx.run(body, ranks=2) == [["NOTE", 25, "NOTE"]] * 2
    assert chosen() == before and before[2] == "Level 25"


def test_the_class_of_new_loggers_is_each_ranks_own() -> None:
    def body() -> list[Any]:
        rank = dist.get_rank()

        class Own(logging.Logger):
            made_by = rank

        if rank < 2:
            logging.setLoggerClass(Own)
        else:
            with pytest.raises(TypeError, match="logger not derived"):
                logging.setLoggerClass(int)  # type: ignore[arg-type]
        dist.barrier()
        made = logging.getLogger(f"made with the class of rank {rank}")
        return [getattr(made, "made_by", None), logging.getLoggerClass() is Own]

    before = chosen()
    assert phalanx.run(body, ranks=3) == [[0, True], [1, True], [None, False]]
    assert chosen() == before


def test_captured_warnings_go_to_the_logging_of_their_rank() -> None:
    def body() -> tuple[list[str], list[str]]:
        rank, text = dist.get_rank(), io.StringIO()
        logger = logging.getLogger("py.warnings")
        logger.handlers = [logging.StreamHandler(text)]
        logger.propagate = False
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            dist.barrier()
            warnings.warn(f"first of {rank}", stacklevel=1)
            dist.barrier()
            logging.captureWarnings(False)
            dist.barrier()
            warnings.warn(f"second of {rank}", stacklevel=1)
        logged = [line for line in text.getvalue().splitlines() if "UserWarning" in line]
        return [line.split(": ")[-1] for line in logged], [str(w.message) for w in shown]

    assert phalanx.run(body, ranks=2) == [
        (["first of 0"], ["second of 0"]),
        (["first of 1"], ["second of 1"]),
    ]
    assert vars(logging)["_warnings_showwarning"] is None


def test_a_rank_that_leaves_capturing_on_does_so_for_itself() -> None:
    def body() -> bool:
        if dist.get_rank() == 0:
            with warnings.catch_warnings():
                logging.captureWarnings(True)
        dist.barrier()
        return vars(logging)["_warnings_showwarning"] is not None

    assert phalanx.run(body, ranks=2) == [True, False]
    assert vars(logging)["_warnings_showwarning"] is None
