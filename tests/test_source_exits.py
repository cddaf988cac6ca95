"""Which ways out of a function the source leaves, from a line and without passing another."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.source_exits import find_exits

EARLY_RETURN = """
def main():
    first()        # after
    if not chief:
        return     # 5
    second()       # stands
"""
TWO_RETURNS = """
def main():
    first()        # after
    if a:
        return     # 5
    if b:
        return     # 7
    second()       # stands
"""
IN_A_BRANCH = """
def main():
    first()        # after
    if chief:
        second()   # stands
    done()         # 6
"""
IN_A_LOOP = """
def main():
    for batch in batches:
        first()    # after
        if stop:
            return # 6
        second()   # stands
    dist.barrier()
"""
A_LOOP_THAT_ENDS = """
def main():
    for batch in batches:
        first()    # after stands
    done()         # 5
"""
AN_ENDLESS_LOOP = """
def main():
    while True:
        first()    # after stands
        if stop:
            return # 6
"""
BROKEN = """
def main():
    while True:
        first()    # after stands
        if stop:
            break
    dist.all_reduce(x)
    done()
"""
RETURNED_BY_FINALLY = """
def main():
    try:
        first()    # after
        if stop:
            return # 6
        second()   # stands
    finally:
        close()
"""
BY_AN_ERROR = """
def main():
    try:
        first()    # after
        second()   # stands
    except ValueError:
        return     # 7
"""
RAISING = """
def main():
    first()        # after
    if bad:
        raise ValueError
    if worse:
        sys.exit(0)
    second()       # stands
"""
RETURNS_THE_CALL = """
def main():
    if chief:
        return first()  # 4 after
    second()       # stands
"""
A_GUARD_OF_SCRIPTS = """
prepare()
if __name__ == "__main__":
    main()         # stands
"""
ON_A_GROUP = """
def main():
    first()        # after
    if a:
        second()   # stands
    dist.barrier(group=group)
    done()         # 7
"""

CASES = {
    "EARLY_RETURN": {("return", 5)},
    "TWO_RETURNS": {("return", 5), ("return", 7)},
    "IN_A_BRANCH": {("end", 6)},
    "IN_A_LOOP": {("return", 6)},
    "A_LOOP_THAT_ENDS": {("end", 5)},
    "AN_ENDLESS_LOOP": {("return", 6)},
    "BROKEN": set(),
    "RETURNED_BY_FINALLY": {("return", 6)},
    "BY_AN_ERROR": {("return", 7)},
    "RAISING": set(),
    "RETURNS_THE_CALL": {("return", 4)},
    "A_GUARD_OF_SCRIPTS": set(),
    "ON_A_GROUP": {("end", 7)},
}


def line_with(source: str, word: str) -> int | None:
    lines = [n for n, line in enumerate(source.splitlines(), 1) if word in line.split("#")[-1]]
    return next((n for n in lines if "#" in source.splitlines()[n - 1]), None)


@pytest.mark.parametrize("name", CASES)
def test_ways_out(name: str, tmp_path: Path) -> None:
    source = globals()[name]
    file = tmp_path / "program.py"
    file.write_text(source)
    stands = line_with(source, "stands")
    assert stands is not None
    found = find_exits(str(file), stands, after=line_with(source, "after"))
    assert found is not None and found.ways == CASES[name]


def ways(tmp_path: Path, source: str, line: int, **how: object) -> set[tuple[str, int]] | None:
    file = tmp_path / "program.py"
    file.write_text(source)
    found = find_exits(str(file), line, **how)  # type: ignore[arg-type]
    return None if found is None else set(found.ways)


def test_a_line_in_a_loop_may_have_been_passed_before(tmp_path: Path) -> None:
    source = (
        "def main():\n    for x in y:\n        step(x)\n        if x:\n            return\n"
    )
    assert ways(tmp_path, source, 3) == {("return", 5), ("end", 5)}


def test_so_may_one_in_a_function_that_is_entered_again(tmp_path: Path) -> None:
    source = "def save():\n    first()\n    return 1\n"
    assert ways(tmp_path, source, 2) == set()
    assert ways(tmp_path, source, 2, again=True) == {("return", 3)}


def test_a_call_that_was_made_further_down_was_made_in_an_earlier_activation(
    tmp_path: Path,
) -> None:
    source = "def save():\n    if off:\n        return\n    first()\n    second()\n"
    assert ways(tmp_path, source, 4, after=5) == {("return", 3)}


@pytest.mark.parametrize(
    "source",
    [
        "def main():\n    yield first()\n    yield second()\n",
        "async def main():\n    first()\n    second()\n",
        "def main(:\n    first()\n    second()\n",
        "def main():\n    if first():\n        second()\n",
    ],
)
def test_what_is_not_followed_has_no_answer(tmp_path: Path, source: str) -> None:
    assert ways(tmp_path, source, 2 if "if" in source else 3, after=2) is None


def test_a_file_that_is_not_there() -> None:
    assert find_exits("/nowhere/program.py", 3) is None
