"""Where values go, in small programs: no torch runs here, only their source is read."""

from __future__ import annotations

import ast
import sys
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest

from phalanx.callsite import Mark
from phalanx.checks.results.cut_graph import LossFollower
from phalanx.source_flows import FlowEnd, first_argument, follow

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="no columns")


def end_of(tmp_path: Path, source: str) -> FlowEnd | None:
    """Run a program that calls `gather(out)`, and follow `out` from there to a `backward()`."""
    file = tmp_path / "program.py"
    file.write_text(dedent(source))
    places: list[Mark] = []

    def gather(*_: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == str(file):
            places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        raise StopIteration

    names = {"gather": gather, "one": Mock(), "context": nullcontext()}
    with pytest.raises((StopIteration, RuntimeError)):
        exec(compile(file.read_text(), str(file), "exec"), names)
    return follow(places, LossFollower, first_argument)


FOUND = {
    "plain": """
        out = []
        gather(out)
        loss = one @ out
        loss.backward()
        """,
    "one of two that are returned": """
        def both():
            out = []
            gather(out)
            return 1, sum(out)
        count, loss = both()
        loss.backward()
        """,
    "by its number": """
        def both():
            out = []
            gather(out)
            return 1, sum(out)
        both()[1].backward()
        """,
    "in both branches": """
        out = []
        gather(out)
        if one:
            scaler.scale(out).backward()
        else:
            manager.backward(out)
        """,
    "through a list": """
        def each():
            out, losses = [], []
            for step in range(2):
                gather(out)
                losses.append(out[0])
            total = sum(loss for loss in losses)
            total.backward()
        each()
        """,
    "behind a try and a with": """
        def train():
            out = []
            with context:
                try:
                    gather(out)
                finally:
                    pass
            (2 * out).backward()
        train()
        """,
    "a comprehension around it": """
        def one_of(number):
            out = []
            gather(out)
            return out
        losses = [one_of(number) for number in range(2)]
        sum(losses).backward()
        """,
}

NOT_FOUND = {
    "the other of two": """
        def both():
            out = []
            gather(out)
            return 1, sum(out)
        loss, metric = both()
        loss.backward()
        """,
    "in one branch": """
        out = []
        gather(out)
        if one:
            out.backward()
        """,
    "in the other branch": """
        def train(first):
            out = []
            if first:
                gather(out)
            else:
                out.backward()
        train(True)
        """,
    "before": """
        out = one
        out.backward()
        gather(out)
        """,
    "another value since": """
        out = []
        gather(out)
        out = one
        out.backward()
        """,
    "deleted": """
        out = []
        gather(out)
        del out
        out.backward()
        """,
    "it returns first": """
        def train():
            out = []
            gather(out)
            return 1
            out.backward()
        train()
        """,
    "without gradients": """
        out = []
        gather(out)
        with torch.no_grad():
            loss = sum(out)
        loss.backward()
        """,
    "nobody returns it": """
        def inner():
            out = []
            gather(out)
        loss = inner()
        loss.backward()
        """,
    "an expression instead of a variable": """
        lists = [[]]
        gather(lists[0])
        lists.backward()
        """,
}


@pytest.mark.parametrize("name", FOUND)
def test_a_value_arrives(tmp_path: Path, name: str) -> None:
    found = end_of(tmp_path, FOUND[name])
    assert found is not None and found.name == "out"
    assert ".backward(" in found.site.source


@pytest.mark.parametrize("name", NOT_FOUND)
def test_a_value_does_not_arrive(tmp_path: Path, name: str) -> None:
    assert end_of(tmp_path, NOT_FOUND[name]) is None


def test_without_the_source_nothing_is_found(tmp_path: Path) -> None:
    code = compile("gather(out)\nout.backward()", str(tmp_path / "gone.py"), "exec")
    assert follow([(code, 0)], LossFollower, first_argument) is None
    call = ast.parse("gather(*rest)").body[0].value  # type: ignore[attr-defined]
    assert first_argument(call) is None
