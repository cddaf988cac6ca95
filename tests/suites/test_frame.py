"""What `tests/suites/run.py` reads, compares and writes, without any suite."""

from __future__ import annotations

import json
from pathlib import Path

from tests.suites.declared import DIFFERENCES, SUITES, Suite
from tests.suites.outcomes import Ran, compare, read
from tests.suites.table import BEGIN, END, write_table

SUITE = Suite("small", "small-*", ("tests",), ranks=2)


def ran(*outcomes: dict[str, str]) -> Ran:
    return Ran(1.0, 0, "small-1.0", {f"rank{n}": each for n, each in enumerate(outcomes)})


def test_a_run_is_read_from_its_files(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    (tmp_path / "run.json").write_text('{"status": null, "seconds": 2, "sources": "small-1.0"}')
    lines = [{"test": "t::a", "outcome": "passed"}, {"test": "t::b", "outcome": "failed"}]
    text = "\n".join(map(json.dumps, [*lines, {"ended": 1}]))
    for rank in range(2):
        (tmp_path / f"rank{rank}.jsonl").write_text(text)
    found = read(tmp_path)
    assert found is not None
    assert str(found) == "1/1/0 in 2 s, ended after its limit"


def test_each_test_that_ends_differently_is_found_on_its_rank() -> None:
    real = ran({"t::a": "passed", "t::b": "failed"}, {"t::a": "passed"})
    here = ran({"t::a": "passed", "t::b": "passed"}, {"t::a": "passed", "t::c": "skipped"})
    assert list(compare(SUITE, real, here)) == [
        ("rank0 t::b", ("failed", "passed"), None),
        ("rank1 t::c", ("not run", "skipped"), None),
    ]


def test_declared_differences_have_their_reason() -> None:
    suite = next(suite for suite in SUITES if suite.name == "fairscale, parts")
    real, here = ({"t.py::test_inputs[cpu-gloo-0]": end} for end in ("failed", "passed"))
    ((_, _, reason),) = compare(suite, ran(real), ran(here))
    assert reason is not None and "aborts" in reason
    assert {known.suite for known in DIFFERENCES} <= {suite.name for suite in SUITES}


def test_a_suite_that_was_not_run_keeps_its_row(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n| small | old |\n{END}\nafter")
    write_table(page, [(SUITE, [None, None])])
    assert "| small | old |" in page.read_text()
    both: list[Ran | None] = [ran({"a": "passed"}), ran({"a": "failed"})]
    write_table(page, [(SUITE, both)])
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after")
    assert "`phalanx run -n 2 -m pytest` | 1/0/0 | 0/1/0 | 1, 1 unexplained |" in text
