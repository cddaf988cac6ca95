"""The check `lost-result`: results that do not come to where the program uses them.

| rule           | what is lost                                   | module            |
|----------------|------------------------------------------------|-------------------|
| a dropped copy | the result, in a copy made in the call         | `dropped_copy.py` |
| off the root   | what `reduce` gives to its root only           | `off_root.py`     |
| a cut graph    | the gradient of what an `all_gather` was given | `cut_graph.py`    |
"""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.checks.results.cut_graph import find_cut_graphs
from phalanx.checks.results.dropped_copy import find_dropped_copies
from phalanx.checks.results.off_root import find_off_root
from phalanx.journal.reader import Journal
from phalanx.model import Finding


def find_lost_results(journal: Journal, host: object) -> Iterator[Finding]:
    """From what the ranks noted, by all rules."""
    yield from find_dropped_copies(journal)
    yield from find_off_root(journal)
    yield from find_cut_graphs(journal)
