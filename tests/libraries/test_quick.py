"""The quick ones of the programs with libraries, where a library is installed.

`make test-libraries` has all of them, in an environment with all libraries."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.libraries.declared import PROGRAMS
from tests.libraries.model import Program
from tests.libraries.run import find_problem, run_both

QUICK = [program for program in PROGRAMS if program.quick]


@pytest.mark.slow
@pytest.mark.parametrize("program", QUICK, ids=lambda program: program.title)
def test_the_same_as_with_torchrun(program: Program) -> None:
    try:
        version(program.library)
    except PackageNotFoundError:
        pytest.skip(f"{program.library} is not installed; `make test-libraries` installs it")
    row = run_both(program)
    assert find_problem(row) == "", row.phalanx.text
