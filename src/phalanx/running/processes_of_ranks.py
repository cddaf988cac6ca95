"""Processes that a rank starts: data loaders' workers, pools, `multiprocessing`, `subprocess`.

They are real processes, which belong to that rank as if it were a process itself: they get its
environment, are its `active_children`, and end as the children of a process do. Installed by
`calls.py`. A program without a number of ranks puts its `Family` here: what it starts itself
goes there.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
from typing import Any

from phalanx.core.baton import here
from phalanx.errors import UsageError
from phalanx.running.children_rules import is_torch_spawn

_family: Any = None
as_processes = False
"""Whether children of a rank that has no group are just processes: `--children processes`."""


def set_family(family: Any) -> None:
    global _family
    _family = family


def process_patches() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) for what starts processes."""
    found = []
    for name in ("ForkProcess", "SpawnProcess", "ForkServerProcess"):
        kind = getattr(multiprocessing.context, name, None)
        if kind is not None:
            found.append((kind, "_Popen", _starting(kind._Popen, forked=name == "ForkProcess")))
    return found


def _starting(original: Any, *, forked: bool) -> Any:
    def start(process: Any) -> Any:
        strand = here.strand
        if strand is None:
            family = _family
            return (
                original(process)
                if family is None
                else family.start(process, original, forked=forked)
            )
        _check_nested(process, strand.local)
        return original(process)

    return staticmethod(start)


def _check_nested(process: Any, context: Any) -> None:
    """A rank without a group that starts numbered processes: the program was meant to start
    its ranks itself."""
    if as_processes or context.initialised or not is_torch_spawn(process):
        return
    raise UsageError(
        "the program calls torch.multiprocessing.spawn before init_process_group, so it starts "
        "its ranks itself: leave the number of ranks out (phalanx run SCRIPT), then the "
        "processes that it starts become the ranks. If they are to be plain processes of each "
        "rank, write --children processes"
    )
