"""What is paired by the order of arrival: sources, answers."""

from __future__ import annotations

import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from phalanx.source_pairs import find_pairing


@pytest.fixture
def place(tmp_path: Path):
    """The place at which a function `f` is when it last calls `recv` without a source."""

    def place(source: str) -> Any:
        file = tmp_path / f"program{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(source))
        found = []

        def recv(tensor: Any, src: Any = None, tag: int = 0) -> int:
            frame = sys._getframe(1)
            if src is None:
                found.append((frame.f_code, frame.f_lasti))
            return 0

        names: dict[str, Any] = {"recv": recv, "torch": Any, "g": print}
        exec(compile(file.read_text(), str(file), "exec"), names)
        with suppress(Exception):  # there is nothing in the messages
            names["f"]()
        return found[-1]

    return place


ZIPPED = """
NAMES = ["a", "b"]
COLORS = ["red", "blue"]
SLOTS = [g, g]

def f():
    kept = collect()
    {}

def collect():
    kept = []
    for _ in range(2):
        part = [1.0]
        recv(part)
        {}
    return kept
"""


@pytest.mark.parametrize(
    ("use", "keep", "is_found"),
    [
        ("table = {n: x for n, x in zip(NAMES, kept)}; g(table['a'])", "", True),
        ("table = dict(zip(NAMES, kept)); best = max(table, key=table.get)", "", True),
        ("for n, x in zip(NAMES, kept): print(n, x)", "", True),
        ("for x, n in zip(kept, NAMES): g(x * len(n))", "", True),
        ("print(len(kept)); rows = [(n, x) for n, x in zip(NAMES, kept)]", "", True),
        ("for n, x in zip(NAMES, kept): g(n, x)", "kept.append(part[0])", True),
        ("for n, x in zip(NAMES, sorted(kept)): print(n, x)", "", False),
        ("kept.sort(); table = dict(zip(NAMES, kept))", "", False),
        ("kept = kept[::-1]; table = dict(zip(NAMES, kept))", "", False),
        ("for _, x in zip(NAMES, kept): print(x)", "", False),
        ("for c, x in zip(COLORS, kept): g(x, c)", "", False),
        ("for s, x in zip(SLOTS, kept): g(s, x)", "", False),
        ("for n, x in zip(range(2), kept): g(n, x)", "", False),
        ("table = dict(zip(NAMES, kept)); g(sum(table.values()))", "", False),
        ("g(sum(n + x for n, x in zip(NAMES, kept)))", "", False),
        ("g(sum(kept))", "", False),
        ("table = dict(zip(NAMES, kept)); g(table)", "kept.append((part, 1))", False),
        ("table = dict(zip(NAMES, kept)); g(table)", "kept.append(part); kept.sort()", False),
        ("NAMES.sort(); table = dict(zip(NAMES, kept)); g(table)", "", False),
    ],
)
def test_a_list_beside_constants(place, use: str, keep: str, is_found: bool) -> None:
    lines = use.replace("; ", "\n    "), keep.replace("; ", "\n        ") or "kept.append(part)"
    found = find_pairing(place(ZIPPED.format(*lines)))
    assert (found is not None) == is_found


def test_a_list_that_is_zipped_where_it_is_made(place) -> None:
    source = """
    NAMES = ("a", "b")
    def f():
        kept = []
        for _ in NAMES:
            part = [1.0]
            recv(part)
            kept.append(part[0])
        for n, x in zip(NAMES, kept):
            g(n, x)
    """
    assert find_pairing(place(source)) == ("g(n, x)", 9)


TWO = """
def f():
    head, body, table, total, count = [0], [0], {{}}, 0, 0
    {}

f2 = None
"""


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("recv(head, tag=1); recv(body, tag=2); return body[0] == 100 * head[0]", True),
        ("who = recv(head, tag=1); recv(body, tag=2); table[who] = body", True),
        ("recv(head, tag=1); recv(body, tag=2); table[int(head[0])] = body", True),
        ("recv(head, tag=1); recv(body, tag=2); n, = head; total += n * body[0]", True),
        ("recv(head, tag=1); recv(body, tag=2); x = body[0]; return x / head[0]", True),
        ("recv(body, tag=2); total += body[0]; return total", False),
        ("recv(head, 1, tag=1); recv(body, tag=2); return body == head", False),
        ("recv(head, src=1, tag=1); recv(body, tag=2); return body == head", False),
        ("recv(head, tag=1); who = recv(body, tag=2); table[who] = head, body", False),
        ("recv(head, tag=1); recv(body, tag=1); return body == head", False),
        ("recv(head, tag=1); recv(body, tag=2 + head[0]); return body == head", False),
        ("recv(head, tag=1); recv(body, tag=2); total += head[0] + body[0]", False),
        ("recv(head, tag=1); recv(body, tag=2); total += head[0]; count += body[0]", False),
        (
            "recv(head, tag=1); recv(body, tag=2); total = total + body[0]; "
            "count = count + head[0]; g(total / count)",
            False,
        ),
        (
            "recv(head, tag=1); recv(body, tag=2); same = 1 if body == head else 0; "
            "table[head[0]] = body",
            False,
        ),
        ("recv(head, tag=1); recv(body, tag=2); print(head, body)", False),
        ("recv(head, tag=1); recv(body, tag=2); return head, body", False),
    ],
)
def test_messages_of_two_tags(place, body: str, is_found: bool) -> None:
    found = find_pairing(place(TWO.format(body.replace("; ", "\n    "))))
    assert (found is not None) == is_found


def test_what_cannot_be_read_is_not_said() -> None:
    code = compile("recv(x)", "<nowhere>", "exec")
    assert find_pairing((code, 0)) is None
