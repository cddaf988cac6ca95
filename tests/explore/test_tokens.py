"""Tokens say what a run chose, in a word that a shell takes as it is."""

from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import UsageError
from phalanx.explore.tokens import Token, read_token

DEVIATIONS = st.dictionaries(st.integers(0, 3000), st.integers(0, 9), max_size=300)
PLANS = [
    "",
    "kill(rank=2, at=call(17))",
    'delay(rank=1, seconds=0.5, at=line("tr\u00e4in.py:4"))',
]


@given(st.integers(1, 64), DEVIATIONS, st.sampled_from(PLANS))
def test_a_token_reads_back(ranks: int, deviations: dict[int, int], faults: str) -> None:
    token = Token(ranks, deviations, "a7f3", faults)
    text = str(token)
    assert read_token(text) == token
    assert shlex.quote(text).strip("'") == text
    assert shlex.split(text) == [text]


def test_few_deviations_can_be_read_by_people() -> None:
    assert str(Token(4, {12: 1, 30: 2, 31: 2, 32: 2}, "a7f3")) == "4-12.1-30_3.2-a7f3"
    assert str(Token(2, {}, "0000")) == "2-0000"


def test_many_deviations_and_plans_stay_short() -> None:
    many = {index: 1 + index % 3 for index in range(0, 300, 2)}
    assert len(str(Token(4, many, "a7f3"))) < 100  # a row of 150, which a person wrote
    assert len(str(Token(4, dict.fromkeys(range(900), 1), "a7f3"))) < 20
    assert len(str(Token(4, {3: 1}, "a7f3", "kill(rank=2, at=call(17))"))) < 30


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "0-a7f3",
        "4-12.1",
        "4-12.1-a7f",
        "4-12.1-a7f3x",
        "4-z-a7f3",
        "4-z!!-a7f3",
        "4-zAAAA-a7f3",
        "4-f____-a7f3",
        "4-1_99999999999999.1-a7f3",
        "4-12.1-\u0664-a7f3",
        None,
        7,
    ],
)
def test_what_is_no_token_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="give the token that a failure was reported with"):
        read_token(text)  # type: ignore[arg-type]


@given(DEVIATIONS, st.integers(0, 400), st.characters(codec="ascii"))
def test_a_damaged_token_is_refused_or_is_one(
    deviations: dict[int, int], place: int, character: str
) -> None:
    text = str(Token(4, deviations, "a7f3"))
    damaged = text[:place] + character + text[place + 1 :]
    with contextlib.suppress(UsageError):
        read_token(damaged)
