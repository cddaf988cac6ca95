"""Comments that silence a finding: the rule table of `silencing.py`."""

from __future__ import annotations

import pytest

from phalanx.checks.silencing import split_silenced
from phalanx.model import CallBlock, Finding, Group, Op, OpBlock, Site, Unmet
from phalanx.report.text import render

WORLD = Group("world", (0, 1))


def leak(*sources: str) -> Finding:
    blocks = [
        CallBlock((0,), Op(0, "new_group", WORLD, site=Site("a.py", line, "main", source)))
        for line, source in enumerate(sources, 1)
    ]
    return Finding("leak", "warning", (0,), headline="x", blocks=tuple(blocks))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("f()  # phalanx: ignore[leak] kept for the next step", "kept for the next step"),
        ("f()  # noqa  # phalanx:ignore[unwaited-work, leak] why", "why"),
        ("f()  # phalanx: ignore[leak]", None),
        ("f()  # phalanx: ignore[mismatch] other", None),
        ("f()  # phalanx: ignore[] nothing", None),
        ("f()  # ignore[leak] not ours", None),
        ("f()", None),
    ],
)
def test_the_comment_names_the_kind_and_a_reason(source: str, reason: str | None) -> None:
    told, silenced = split_silenced([leak(source)])
    assert [each.reason for each in silenced] == ([] if reason is None else [reason])
    assert len(told) == (reason is None)


def test_one_line_of_several_is_enough() -> None:
    told, silenced = split_silenced([leak("f()", "g()  # phalanx: ignore[leak] why"), leak("")])
    assert len(told) == 1 and str(silenced[0].site) == "a.py:2"


def test_a_comment_without_a_reason_is_told() -> None:
    told, _ = split_silenced([leak("f()  # phalanx: ignore[leak]")])
    assert isinstance(told[0], Finding)
    assert told[0].facts[0][1].startswith("give a reason: # phalanx: ignore[leak] why")


@pytest.mark.parametrize(
    ("comment", "note"),
    [
        ("leek", "ignore[leek]: there is no kind 'leek'; did you mean 'leak'?"),
        ("xyzzy", "ignore[xyzzy]: there is no kind 'xyzzy'"),
        ("mismatch", "the comment on this line is for mismatch, this is leak"),
        ("", "the comment on this line is for no kind, this is leak"),
    ],
)
def test_a_comment_that_silences_nothing_says_why(comment: str, note: str) -> None:
    told, _ = split_silenced([leak(f"f()  # phalanx: ignore[{comment}] why")])
    assert isinstance(told[0], Finding)
    label, text = told[0].facts[-1]
    assert label == "note" and text.endswith(note)


def test_the_same_on_messages_that_nobody_received() -> None:
    source = "f()  # phalanx: ignore[unmatched-mesage] why"
    op = Op(0, "send", WORLD, peer=1, tag=0, site=Site("a.py", 1, "main", source))
    unmet = Unmet("unmatched-message", "warning", (0,), (OpBlock((0,), op),), (1,))
    told, _ = split_silenced([unmet])
    assert "  note      # phalanx: ignore[unmatched-mesage]: there is no" in render(told[0])
