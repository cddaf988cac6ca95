"""An exploration as JSON, for tools."""

from __future__ import annotations

import json
from typing import Any

from phalanx.engines.run_recording import plain_verdict
from phalanx.errors import UsageError
from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.explore_options import ExploreOptions
from phalanx.model import Verdict

VERSION = 1


def plain_exploration(found: Exploration, asked: ExploreOptions) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "version": VERSION,
        "summary": found.summary(),
        "passed": found.passed,
        "complete": found.complete,
        "ranks": found.ranks,
        "schedules": found.schedules,
        "behaviours": found.behaviours,
        "results": found.results,
        "seconds": round(found.seconds, 3),
        "strategy": asked.strategy,
        "seed": asked.seed,
        "failures": [_plain_failure(each) for each in found.failures],
    }


def _plain_failure(failure: ExplorationFailure) -> dict[str, Any]:
    verdict = getattr(failure.error, "verdict", None)
    return {
        "kind": failure.kind,
        "title": failure.title,
        "token": failure.token,
        "replay": failure.replay,
        "schedules": failure.schedules,
        "first": failure.first,
        "behaviours": failure.behaviours,
        "story": failure.story,
        "verdict": plain_verdict(verdict) if isinstance(verdict, Verdict) else None,
    }


def write_json(path: str, found: Exploration, asked: ExploreOptions) -> None:
    """Into a file. Raises `UsageError` if it cannot be written."""
    text = json.dumps(plain_exploration(found, asked), indent=2, default=str)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"--json {path}: cannot be written ({error.strerror})") from None
