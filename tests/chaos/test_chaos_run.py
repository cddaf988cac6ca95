"""The suite of faults judges right, and each fault can happen. `make chaos` runs it."""

from __future__ import annotations

import ast
import mmap
import random
from pathlib import Path

import pytest

from tests.chaos.faults import ENGINES, FAULTS, RIGHT
from tests.chaos.run import VICTIM, Ending, Injection, draw, forgotten, inject, shortcomings

RAISES = next(fault for fault in FAULTS if fault.name == "raises")
TEXT = "ValueError: the step failed"


def test_each_fault_is_a_function_of_the_victim_or_comes_from_outside() -> None:
    parsed = ast.parse(VICTIM.read_text())
    functions = {each.name for each in parsed.body if isinstance(each, ast.FunctionDef)}
    inside = {fault.name for fault in FAULTS if not fault.outside}
    assert inside <= functions
    assert functions - inside == {"a_step", "main", "slow"}
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) >= 40


@pytest.mark.parametrize("engine", ENGINES)
def test_faults_are_drawn_for_the_engines_that_they_are_for(engine: str) -> None:
    choose = random.Random(5)
    for _ in range(300):
        injection = draw(choose, only="", engine=engine)
        assert injection.engine == engine in injection.fault.engines


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending(1, TEXT, 2.0, []), ""),
        (Ending(0, "done", 2.0, []), "LOOKS LIKE ONE THAT PASSED"),
        (Ending(3, TEXT, 2.0, []), "status 3"),
        (Ending(1, "no reason", 2.0, []), "the output has no"),
        (Ending(1, TEXT, 2.0, ["process 7: python"]), "left process 7"),
        (Ending(1, TEXT, 2.0, ["file x"]), "left file x"),
        (Ending(1, f"{TEXT} INTERNALERROR", 2.0, []), "own"),
        (Ending(None, TEXT, 90.0, []), "did not end"),
    ],
)
def test_endings_are_judged(ending: Ending, text: str) -> None:
    found = "; ".join(shortcomings(Injection(RAISES, "processes", 0, 0), ending))
    assert text in found
    assert bool(found) == bool(text)


@pytest.mark.programs
def test_an_injection_leaves_nothing_and_what_is_left_is_found(tmp_path: Path) -> None:
    injection = Injection(RAISES, "threads", 1, 0)
    ending = inject(injection, tmp_path)
    assert shortcomings(injection, ending) == []
    (tmp_path / "forgotten").write_text("")
    right = Injection(next(each for each in FAULTS if each.name == "none"), "threads", 0, 0)
    ending = inject(right, tmp_path)
    assert ending.status == RIGHT
    assert shortcomings(right, ending) == ["left file forgotten"]


def test_what_a_living_program_has_mapped_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.chaos.run.CLEAR", 0.0)
    for name in ("before", "mapped", "left"):
        (tmp_path / name).write_text(name)
    with (tmp_path / "mapped").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert forgotten({"before"}, str(tmp_path)) == {"left"}
    assert forgotten({"before"}, str(tmp_path)) == {"left", "mapped"}
