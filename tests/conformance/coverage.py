"""Writes docs/coverage.md: every name of the inventory with the cases and tests for it.

python -m tests.conformance.coverage > docs/coverage.md
"""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from phalanx.conformance.suite import all_cases
from tests.conformance.inventory import SECTIONS

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "coverage.md"

INTRODUCTION = """\
# What is covered, and by what

Made by `python -m tests.conformance.coverage`: do not edit. Every name that must work, with
the conformance cases (a glob over their ids, how many there are at 2, 3 and 4 ranks, and one
of them; `phalanx conformance --select GLOB` runs them) and the tests that cover it.
"""


@cache
def case_ids() -> tuple[str, ...]:
    return tuple(case.id for case in all_cases([2, 3, 4]))


def cases_of(globs: str) -> list[str]:
    words = globs.split()
    return [name for name in case_ids() if any(fnmatchcase(name, word) for word in words)]


@cache
def tests_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def is_there(test: str) -> bool:
    """Whether a test such as "stack/test_ddp.py::test_it" exists; `*` stands for the file."""
    file, _, name = test.partition("::")
    path = TESTS / file
    return path.is_file() and (name == "*" or name in tests_in(path))


def render() -> str:
    lines = [INTRODUCTION]
    for title, parts in SECTIONS:
        lines += [f"## {title}", ""]
        for heading, rows in parts:
            lines += [f"### {heading}", "", "| name | cases | tests |", "|---|---|---|"]
            for name, globs, tests in rows:
                lines.append(f"| {name} | {_told_cases(globs)} | {_told_tests(tests)} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _told_cases(globs: str) -> str:
    found = cases_of(globs)
    if not found:
        return ""
    words = " ".join(f"`{word}`" for word in globs.split())
    return f"{len(found):,}: {words}, e.g. `{found[0]}`"


def _told_tests(tests: str) -> str:
    return ", ".join(f"`tests/{test.removesuffix('::*')}`" for test in tests.split())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
