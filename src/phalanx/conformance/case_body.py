"""What runs on each rank: runs a list of cases and reports the result of each.

The runner sends this function to the ranks of a world, threads or processes alike. Between two
runs of the same world a rank keeps its groups; `token` identifies the world.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch.distributed as dist

from phalanx.conformance.case_context import PATIENCE, CaseUnmet, Context, WrongData
from phalanx.conformance.case_model import Case, Report, Setting
from phalanx.conformance.suite import PROGRAMS

LONG = 5.0
"""An error that took longer than this means that a rank waited for one that did not come."""

_contexts: dict[tuple[str, int], Context] = {}


def enter(setting: Setting, token: str) -> None:
    """Make the default group of a new world; an error is that of the backend's constructor."""
    warnings.simplefilter("ignore")
    _context_of(setting, token, bare=False)


def carry_out(setting: Setting, token: str, cases: Sequence[Case]) -> list[Report]:
    """The reports in order. Ends early after an error that took long: then a rank waited for
    one that did not come, the ranks are no longer at the same place, and every further case
    would wait as long."""
    warnings.simplefilter("ignore")
    context = _context_of(setting, token, bare=bool(cases) and cases[0].bare)
    reports = []
    with _trail(setting, token, context.rank).open("wb", buffering=0) as trail:
        for case in cases:
            trail.write(b".")
            start = time.monotonic()
            reports.append(carry_out_one(context, case))
            if reports[-1].status == "error" and time.monotonic() - start > LONG:
                break
    return reports


def begun(setting: Setting, token: str, ranks: int) -> int:
    """How many cases of the last list every rank has begun, also if the ranks are gone."""
    trails = [_trail(setting, token, rank) for rank in range(ranks)]
    return min(trail.stat().st_size if trail.exists() else 0 for trail in trails)


def _trail(setting: Setting, token: str, rank: int) -> Path:
    """A file that gets a character at the start of each case."""
    return Path(setting.scratch, f"begun-{token}-{rank}")


def carry_out_one(context: Context, case: Case) -> Report:
    try:
        PROGRAMS[case.program](context, **case.given)
    except WrongData as error:
        return Report("wrong", str(error))
    except CaseUnmet as error:
        return Report("unmet", str(error))
    except Exception as error:
        return Report(
            "error", _first_line(error), tuple(c.__name__ for c in type(error).__mro__)
        )
    finally:
        context.close_fresh()
    return Report("right")


def leave(token: str) -> None:
    """Destroy the groups of a world that is about to be closed."""
    _contexts.pop((token, int(os.environ["RANK"])), None)
    if dist.is_initialized():
        dist.destroy_process_group()


def forget(token: str) -> None:
    """Drop what ranks that were threads of this process have kept for a world."""
    for key in [key for key in _contexts if key[0] == token]:
        del _contexts[key]


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]


def _context_of(setting: Setting, token: str, *, bare: bool) -> Context:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    key = (token, rank)
    if bare:
        _contexts.pop(key, None)
        if dist.is_initialized():
            dist.destroy_process_group()
        return Context(setting, token, rank, size)
    if key not in _contexts:
        for module in setting.imports:
            import_module(module)
        if not dist.is_initialized():
            _init(setting, token, rank, size)
        _contexts[key] = Context(setting, token, rank, size)
    return _contexts[key]


def _init(setting: Setting, token: str, rank: int, size: int) -> None:
    """By a file: no ports to collide, and every engine and backend takes it."""
    dist.init_process_group(
        setting.backend,
        init_method=f"file://{setting.scratch}/{token}",
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
    )
