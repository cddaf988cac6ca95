"""The traceback that a failed test shows: the user's lines, and none of ours.

unittest needs none, since the text of the error says where it came from. pytest shows source
lines for a traceback, so under pytest the error gets the traceback of the first rank that
failed; a rank in another process sends only text, from which one is made. Used by
`outcomes.py`.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from phalanx import callsite
from phalanx.engines.outcome import trim_traceback
from phalanx.engines.remote.failure_evidence import RemoteTraceback
from phalanx.errors import RankFailedError

_LINE = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\w+)$', re.M)


def place_of(error: BaseException, test: Callable[..., Any]) -> TracebackType | None:
    """The place where the error came up, for pytest; at least the test in which it did."""
    if pytest_id() is None:
        return None
    if isinstance(error, RankFailedError) and error.failures and error.verdict is not None:
        error = error.failures[error.verdict.raised[0][0][0]]
    if isinstance(error.__cause__, RemoteTraceback):
        found = _last_line(error.__cause__.text)
    else:
        trace = trim_traceback(error).__traceback__
        if trace is not None:
            return trace
        found = None
    return _made_for(*(found or _begin(test)))


def pytest_id() -> str | None:
    """How pytest calls the test that it runs now, if it does."""
    if "pytest" not in sys.modules or "PYTEST_CURRENT_TEST" not in os.environ:
        return None
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]


def _last_line(text: str) -> tuple[str, int, str] | None:
    """The innermost line of the user's that a printed traceback names."""
    for each in reversed(list(_LINE.finditer(text))):
        if not callsite.is_library_file(each["file"]):
            return each["file"], int(each["line"]), each["function"]
    return None


def _begin(test: Callable[..., Any]) -> tuple[str, int, str]:
    code = inspect.unwrap(test).__code__
    return code.co_filename, _first_line(code.co_filename, code.co_firstlineno), code.co_name


def _made_for(file: str, line: int, function: str) -> TracebackType | None:
    """A traceback to that line, from a function that begins where the user's does and raises
    there."""
    first = _first_line(file, line)
    tree = ast.parse(f"def {function}():\n raise RuntimeError")
    for node in ast.walk(tree):
        is_inside = isinstance(node, (ast.Raise, ast.Name))
        spot = {"lineno": line if is_inside else first, "col_offset": 0}
        vars(node).update(spot, end_lineno=spot["lineno"], end_col_offset=0)
    names: dict[str, Any] = {}
    exec(compile(tree, file, "exec"), names)
    try:
        names[function]()
    except RuntimeError:
        trace = sys.exc_info()[2]
        return trace.tb_next if trace is not None else None
    return None


def _first_line(file: str, line: int) -> int:
    """Where the function begins that a line is in."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return line
    starts = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(starts, default=line)
