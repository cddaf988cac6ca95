"""The configuration of logging is looked up by rank from the first change on, not before."""

from __future__ import annotations

import logging

import torch.distributed as dist

import phalanx
from phalanx.running.isolation import logs
from phalanx.running.patches import patched


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
