"""The frame of the library tests can say no: it notices other numbers, lines and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.libraries.compare import find_difference, lines_in, lines_of_all, lines_of_ranks
from tests.libraries.declared import PROGRAMS
from tests.libraries.launch import EXAMPLES
from tests.libraries.model import Program, Ran, Row
from tests.libraries.run import find_problem, is_chosen
from tests.libraries.table import BEGIN, END, write_table

ONE = Program("lib", "one.py", ranks=2)


def ran(*lines: str, status: str = "passed") -> Ran:
    return Ran(status, 1.0, {0: list(lines), 1: list(lines)} if lines else {}, "")


def row(torchrun: Ran, phalanx: Ran, program: Program = ONE) -> Row:
    return Row(program, "1.0", torchrun, phalanx, find_difference(program, torchrun, phalanx))


def test_lines_are_found_for_each_rank() -> None:
    text = "[0-1] loss 0.5\n[1]   own 3\n[0,2-3] x \n[0]   \nphalanx: nothing found"
    assert lines_of_ranks(text) == {0: ["loss 0.5", "x"], 1: ["loss 0.5", "own 3"]} | {
        rank: ["x"] for rank in (2, 3)
    }
    assert lines_in("a\n\n b \n") == ["a", " b"]


def test_lines_of_a_program_that_starts_its_ranks_are_taken_together() -> None:
    assert lines_of_all("z\n[0-1] b\n[1]   a\n[0]\n") == ["a", "b", "b", "z"]
    program = Program("lib", "one.py", args=("4",), starts_ranks=True)
    assert program.title == "one.py 4"


@pytest.mark.parametrize(
    ("wanted", "line", "tolerance", "same"),
    [
        ("result loss 0.50", "result loss 0.50", 0.0, True),
        ("result loss 0.50", "result loss 0.51", 0.0, False),
        ("result loss 0.50", "result loss 0.51", 0.02, True),
        ("result loss 0.50", "result gain 0.50", 0.02, False),
        ("result [1, 2e3]", "result [1, 2.001e3]", 0.001, True),
        ("result w1 -1.0", "result w1 1.0", 0.1, False),
        ("result w1 1.0", "result w2 1.0", 9.0, False),
        ("result nan", "result nan", 0.1, True),
        ("result nan", "result 1.0", 0.1, False),
    ],
)
def test_numbers_may_differ_by_the_tolerance(
    wanted: str, line: str, tolerance: float, same: bool
) -> None:
    program = Program("lib", "one.py", tolerance=tolerance)
    assert (find_difference(program, ran(wanted), ran(line)) == "") is same


def test_missing_results_are_a_difference() -> None:
    assert find_difference(ONE, ran(), ran()) == "no rank printed a line"
    marked = Program("lib", "one.py", compare="results")
    assert "begins with 'result '" in find_difference(marked, ran("a"), ran("a"))
    assert find_difference(marked, ran("result a", "b"), ran("c", "result a")) == ""
    assert find_difference(ONE, ran("result a", "b"), ran("c", "result a"))
    assert not find_difference(Program("lib", "one.py", compare="status"), ran("a"), ran("b"))
    two = ran("result a", "result b")
    assert "1 lines where torchrun gives 2" in find_difference(ONE, two, ran("result a"))
    alone = Ran("passed", 1.0, {0: ["result a"]}, "")
    assert "rank 1" in find_difference(ONE, ran("result a"), alone)


def test_every_end_is_judged() -> None:
    good, bad = ran("result a"), ran(status="failed")
    assert find_problem(row(good, good)) == ""
    assert "failed with phalanx run" in find_problem(row(good, bad))
    assert "failed with torchrun" in find_problem(row(bad, good))
    assert "torchrun gives" in find_problem(row(good, ran("result b")))
    known = Program("lib", "one.py", fails_here="threads")
    assert find_problem(row(good, bad, known)) == ""
    assert "take fails_here away" in find_problem(row(good, good, known))
    hopeless = Program("lib", "one.py", fails_with_torchrun="needs a GPU")
    assert find_problem(row(bad, bad, hopeless)) == ""
    assert "take fails_with_torchrun away" in find_problem(row(good, bad, hopeless))


def test_the_table_keeps_rows_that_were_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\n{END}\n\nafter\n")
    other = Program("lib", "other.py", ranks=4, args=("--x",))
    good, bad = ran("result a"), ran(status="failed")
    write_table(page, [row(good, bad, other)], [ONE, other])
    write_table(page, [row(good, good)], [ONE, other])
    lines = page.read_text().splitlines()
    assert "| lib | 1.0 | `-n 2 one.py` | yes | yes | 1.0 s, 1.0 s |" in lines
    assert "| lib | 1.0 | `-n 4 other.py --x` | yes | **failed** | 1.0 s, 1.0 s |" in lines
    assert lines[0] == "# Title"
    assert lines[-1] == "after"
    known = Program("lib", "known.py", fails_here="threads")
    write_table(page, [row(good, bad, known)], [ONE, known])
    assert "| `-n 2 known.py` | yes | **failed**: threads | " in page.read_text()
    write_table(page, [], [ONE])
    assert "other.py" not in page.read_text()


def test_programs_are_chosen_by_part_of_their_title() -> None:
    assert is_chosen(ONE, [])
    assert is_chosen(ONE, ["zzz", "one"])
    assert is_chosen(ONE, ["lib: -n 2"])
    assert not is_chosen(ONE, ["two"])


def test_every_declared_program_is_there_and_says_how_to_run_it() -> None:
    assert PROGRAMS
    titles = [program.title for program in PROGRAMS]
    assert sorted(set(titles)) == sorted(titles)
    for name in {program.name for program in PROGRAMS if not program.module}:
        assert f"examples/libraries/{name}" in (EXAMPLES / name).read_text()
