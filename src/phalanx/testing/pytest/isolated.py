"""Tests with `isolate=`: every rank of every test imports the packages for itself.

Used by `items.py`, which warns about names that a test can only have from the shared package,
and by `in_rank.py`, where the process of a rank outlives the test.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

from phalanx.errors import PhalanxWarning


def warn_of_bound_names(item: Any, packages: Sequence[str]) -> None:
    """What the test's module has imported from these packages is one for all ranks."""
    function = getattr(item, "obj", None)
    code = getattr(function, "__code__", None)
    if not packages or not isinstance(code, CodeType):
        return
    known = getattr(function, "__globals__", {})
    names = sorted(name for name in _names_in(code) if _package_of(known.get(name)) in packages)
    if names:
        item.warn(
            PhalanxWarning(
                f"isolate={tuple(packages)!r}: the test's module has imported "
                f"{', '.join(names)} once for all ranks; import inside the test what each "
                "rank is to have for itself"
            )
        )


def _names_in(code: CodeType) -> set[str]:
    """The globals that a function, and those inside it, use."""
    steps = dis.get_instructions(code)
    own = {str(step.argval) for step in steps if step.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return own.union(*map(_names_in, inner))


def _package_of(value: Any) -> str | None:
    if isinstance(value, ModuleType):
        name: Any = value.__name__
    else:
        name = getattr(value, "__module__", None)
    return name.partition(".")[0] if isinstance(name, str) else None


@contextmanager
def new_packages(packages: Sequence[str]) -> Iterator[None]:
    """In a process: imports of these packages inside the block are new, and dropped
    afterwards."""
    before = _take_out(packages)
    try:
        yield
    finally:
        if packages:
            _take_out(packages)
            sys.modules.update(before)


def _take_out(packages: Sequence[str]) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}
