"""How the tests of a suite ended, as the plugin wrote it, and where two runs differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tests.suites.declared import DIFFERENCES, Suite

COUNTED = ("passed", "failed", "skipped")


@dataclass
class Ran:
    """One run: for each rank how each test ended."""

    seconds: float
    status: int | None  # None: ended after its limit
    sources: str
    ranks: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def counts(self) -> list[str]:
        """passed/failed/skipped of each rank, once if all ranks have the same."""
        texts = []
        for tests in self.ranks.values():
            counted = Counter(tests.values())
            texts.append("/".join(str(counted[word]) for word in COUNTED))
        return list(dict.fromkeys(texts)) or ["0/0/0"]

    def __str__(self) -> str:
        end = "ended after its limit" if self.status is None else f"status {self.status}"
        return f"{' and '.join(self.counts)} in {self.seconds:.0f} s, {end}"


def read(place: Path) -> Ran | None:
    """The run whose files lie there, or None."""
    if not (place / "run.json").exists():
        return None
    ran = Ran(**json.loads((place / "run.json").read_text()))
    for path in sorted(place.glob("rank*.jsonl")):
        lines = map(json.loads, path.read_text().splitlines())
        ran.ranks[path.stem] = {
            line["test"]: line["outcome"] for line in lines if "test" in line
        }
    return ran


def compare(
    suite: Suite, real: Ran, here: Ran
) -> Iterator[tuple[str, tuple[str, str], str | None]]:
    """Each test that ends differently: where, how in each run, and the declared reason."""
    for rank in sorted(real.ranks.keys() | here.ranks.keys()):
        before, after = real.ranks.get(rank, {}), here.ranks.get(rank, {})
        for test in sorted(before.keys() | after.keys()):
            ends = before.get(test, "not run"), after.get(test, "not run")
            if ends[0] != ends[1]:
                yield f"{rank} {test}", ends, reason_for(suite, test)


def reason_for(suite: Suite, test: str) -> str | None:
    for known in DIFFERENCES:
        # fnmatch reads brackets, and parametrised tests have them in their names.
        pattern = known.tests.replace("[", "[[]")
        if known.suite == suite.name and fnmatchcase(test, f"*{pattern}"):
            return known.reason
    return None
