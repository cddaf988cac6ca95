"""Every name of the inventory is covered by something that exists, and the page says so."""

from __future__ import annotations

import pytest

from tests.conformance import coverage
from tests.conformance.inventory import SECTIONS

ROWS = [row for _, parts in SECTIONS for _, rows in parts for row in rows]


@pytest.mark.parametrize(("name", "globs", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_every_name_is_covered(name: str, globs: str, tests: str) -> None:
    assert globs or tests, f"nothing covers {name}"
    for word in globs.split():
        assert coverage.cases_of(word), f"no case has an id like {word}"
    for test in tests.split():
        assert coverage.is_there(test), f"there is no {test}"


def test_a_test_that_is_missing_is_noticed() -> None:
    assert coverage.is_there("conformance/test_coverage.py::test_every_name_is_covered")
    assert not coverage.is_there("conformance/test_coverage.py::test_no_such_thing")
    assert not coverage.is_there("conformance/no_such_file.py::test_it")


def test_the_page_is_up_to_date() -> None:
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.render(), (
        "run: python -m tests.conformance.coverage"
    )
