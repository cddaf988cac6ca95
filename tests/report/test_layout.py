"""The pieces all reports are made of."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.model import (
    Finding,
    Group,
    Op,
    RankFailure,
    RankView,
    Site,
    Stall,
    TensorSpec,
    ViewBlock,
    Wait,
    rank_list,
)
from phalanx.report import calls, layout, text
from phalanx.report.calls import call_pieces, call_text
from phalanx.report.layout import (
    Block,
    ascii_text,
    cut,
    labelled,
    lay_blocks,
    shorten,
    visible,
    wrap,
)
from phalanx.report.text import headline, render

WORLD = Group("world", (0, 1))
light = settings(max_examples=50, deadline=None)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([2], "rank 2"),
        ([1, 0], "ranks 0, 1"),
        ([0, 1, 2, 5], "ranks 0-2, 5"),
        ([3, 1, 2, 7, 8], "ranks 1-3, 7, 8"),
        (range(1024), "ranks 0-1023"),
        (range(0, 1024, 2), "ranks 0, 2, 4, 6, 8, 10, ... (512 ranks)"),
    ],
)
def test_rank_list(ranks: list[int], expected: str) -> None:
    assert rank_list(ranks) == expected


@light
@given(st.sets(st.integers(0, 2000), min_size=2, max_size=60))
def test_rank_list_names_every_rank_or_says_how_many(ranks: set[int]) -> None:
    shown = rank_list(ranks, width=60)
    assert len(shown) <= 60
    if "..." in shown:
        assert shown.endswith(f"({len(ranks)} ranks)")
        assert len(rank_list(ranks, width=10**6)) > 60
        return
    named: set[int] = set()
    for part in shown.removeprefix("ranks ").split(", "):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ranks


def test_wrap_prefers_clauses_and_keeps_short_text_whole() -> None:
    assert wrap("a b; c d", 20) == ["a b; c d"]
    assert wrap("one two; three four", 14) == ["one two;", "three four"]
    assert wrap("one two three four", 9) == ["one two", "three", "four"]
    assert wrap("train.py:63 is one word", 12) == ["train.py:63", "is one word"]
    assert wrap("", 10) == [""]


@light
@given(st.text(alphabet="ab ;:-\u00e9", max_size=200), st.integers(10, 60))
def test_wrap_loses_no_word(given_text: str, width: int) -> None:
    words = given_text.encode("ascii", "backslashreplace").decode().split()
    assert " ".join(wrap(given_text, width)).split() == words


def test_cut_keeps_one_ascii_line() -> None:
    assert cut("short", 10) == "short"
    assert cut("a long line of code", 12) == "a long ..."
    assert cut("averylongwordindeed", 12) == "averylon ..."
    assert cut("two\nlines", 20) == "two ..."
    assert cut("gr\u00fc\u00df", 20) == "gr\\xfc\\xdf"
    assert cut("", 5) == ""


def test_labelled_hangs_and_keeps_commands_whole() -> None:
    lines = labelled("hint", "word " * 30)
    assert lines[0].startswith("  hint      word")
    assert all(line.startswith(" " * 12) for line in lines[1:])
    assert labelled("replay", "x" * 200, whole=True) == ["  replay    " + "x" * 200]


def test_blocks_share_one_column() -> None:
    site = Site("a.py", 1, "main", "f()")
    blocks = [Block((0, 1, 2), ("barrier()",), site, ("needs rank 5",)), Block((5,), ("x",))]
    assert lay_blocks(blocks) == [
        "  ranks 0-2   barrier()",
        "              a.py:1 in main",
        "              >  f()",
        "              needs rank 5",
        "",
        "  rank 5      x",
    ]


def test_mark_has_a_column_unless_the_call_is_long() -> None:
    def marked(piece: str) -> list[str]:
        return lay_blocks([Block((0,), (piece,), mark="<- differs")])

    assert marked("f()")[0].index("<-") == 66
    assert marked("f" * 60)[0].endswith("f  <- differs")
    assert marked("f" * 76) == ["  rank 0   " + "f" * 76, " " * 11 + "<- differs"]


def test_long_source_is_cut_and_long_paths_are_not() -> None:
    site = Site("p" * 90 + ".py", 1, "main", "f(" + "x, " * 60 + ")")
    lines = lay_blocks([Block((0,), ("barrier()",), site)])
    assert "p" * 90 + ".py:1 in main" in lines[1]
    assert len(lines[2]) <= 88 and lines[2].endswith(" ...")


def test_shorten_accounts_for_every_rank() -> None:
    blocks = [Block((rank,), ("f()",)) for rank in range(64)]
    assert shorten(blocks[:8]) == blocks[:8]
    short = shorten(blocks)
    assert len(short) == 8
    assert sorted(rank for block in short for rank in block.ranks) == list(range(64))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Op(0, "barrier", WORLD, 0), "barrier()"),
        (Op(0, "recv", WORLD, peer=1, tag=0), "recv(src=1, tag=0)"),
        (Op(0, "recv", WORLD, tag=3), "recv(src=any, tag=3)"),
        (Op(0, "isend", WORLD, peer=1, tag=0), "isend(dst=1, tag=0)"),
        (Op(0, "broadcast", WORLD, 0, root=0), "broadcast(src=0)"),
        (Op(0, "scatter", WORLD, 0, root=1), "scatter(src=1)"),
        (Op(0, "reduce", WORLD, 0, root=0, reduce_op="SUM"), "reduce(dst=0, op=SUM)"),
        (Op(0, "gather", WORLD, 0, root=1), "gather(dst=1)"),
        (Op(0, "get", WORLD, key="a"), 'store.get("a")'),
        (Op(0, "store.wait", WORLD, key="a"), 'store.wait("a")'),
        (
            Op(0, "all_to_all_single", WORLD, 0, input_splits=(1, 2), output_splits=(3,) * 8),
            "all_to_all_single(input_splits=[1, 2], "
            "output_splits=[3, 3, 3, 3, 3, 3, ... (8 in all)])",
        ),
    ],
)
def test_call_text(op: Op, expected: str) -> None:
    assert call_text(op) == expected


def test_call_pieces_show_tensors_and_place() -> None:
    one, flat = TensorSpec("float32", (4,)), TensorSpec("float32", (8,))
    gather = Op(0, "all_gather", WORLD, 3, inputs=(one,), outputs=(one, one))
    assert call_pieces(gather) == ("all_gather()", "float32[4] -> 2 x float32[4]", "cpu")
    assert call_pieces(gather, where=True)[-1] == 'group "world" (ranks 0, 1), call #3'
    same = Op(0, "all_reduce", WORLD, 3, inputs=(one,), outputs=(one,))
    assert call_pieces(same)[1] == "float32[4]"
    many = Op(0, "all_reduce_coalesced", WORLD, 3, inputs=(one, flat) * 4)
    assert call_pieces(many)[1].endswith("float32[8], ... (8 tensors)")
    pair = Op(0, "recv", Group("pair", (0, 1)), peer=1, outputs=(one,))
    assert call_pieces(pair, where=True)[-1] == 'group "pair" (ranks 0, 1)'


def failure(**changes: object) -> RankFailure:
    given = {"raised": (), "sites": {}, "stopped": (), **changes}
    return RankFailure("rank-failed", "error", (), **given)  # type: ignore[arg-type]


def test_failure_headlines() -> None:
    long = failure(raised=(((2,), "ValueError: " + "x" * 200),))
    assert len(headline(long)) <= 88
    assert headline(failure(raised=(((2,), "called os._exit with code 3"),))) == (
        "rank 2 called os._exit with code 3"
    )
    assert headline(failure(stuck=((3, None),))) == "rank 3 could not be stopped"


def test_stall_headlines() -> None:
    def stall(*views: RankView, seconds: float = 2.5) -> Stall:
        blocks = tuple(ViewBlock((view.rank,), view) for view in views)
        return Stall("stall", "error", (), seconds, blocks)

    a, b = Site("a.py", 1, "f"), Site("b.py", 2, "g")
    apart = stall(RankView(0, "outside", site=a), RankView(1, "outside", site=b))
    assert headline(apart) == "no rank moved for 2.5 s; ranks 0, 1 are outside Phalanx's sight"
    busy = stall(RankView(0, "computing", site=a), RankView(1, "finished"))
    assert headline(busy) == "no rank moved for 2.5 s; rank 0 is computing at a.py:1"
    assert headline(stall(RankView(1, "finished"), seconds=0.0)) == "no rank moves"
    outside = Stall("stall", "error", (), 2.0, (), awaited="the launcher (process 7) to end")
    assert headline(outside) == (
        "no sign of life for 2 s; waited for the launcher (process 7) to end"
    )


OBEYED = "\x1b]0;title\x07 \x1b[2J a\rb \x9b31m \x7f \u202e"


def test_what_a_terminal_would_obey_is_shown_everywhere() -> None:
    shown = "\\x1b]0;title\\x07 \\x1b[2J a\\x0db \\x9b31m \\x7f \\u202e"
    assert visible(OBEYED) == ascii_text(OBEYED) == shown
    assert visible("tab\there\nand \u00fc") == "tab\there\nand \u00fc"
    site = Site(f"{OBEYED}.py", 3, OBEYED, f"x = 1 {OBEYED}")
    op = Op(0, OBEYED, Group(OBEYED, (0, 1)), number=1, site=site)
    view = RankView(1, "waiting", wait=Wait(op, (0,)), site=site)
    verdicts = [
        failure(raised=(((0,), f"ValueError: {OBEYED}\n{OBEYED}"),), sites={0: site}),
        failure(raised=(((0,), "E"),), sites={}, stopped=(ViewBlock((1,), view),)),
        Stall("stall", "error", (), seconds=1.0, blocks=(ViewBlock((1,), view),),
              stacks={1: (site,)}, names=((OBEYED, OBEYED),)),
        Finding("leak", "warning", (), headline=OBEYED, facts=((OBEYED, OBEYED),), hint=OBEYED),
    ]  # fmt: skip
    for verdict in verdicts:
        told = render(verdict, replay=f"phalanx run {OBEYED}")
        assert told.isascii() and told.replace("\n", "").isprintable(), repr(told)


def test_user_text_becomes_ascii() -> None:
    site = Site("na\u00efve.py", 3, "f", 'print("\u2192")')
    shown = render(failure(raised=(((0,), "ValueError: \u2603"),), sites={0: site}))
    assert shown.isascii()
    assert "\\u2603" in shown and "na\\xefve.py:3" in shown


@pytest.mark.parametrize("module", [layout, calls, text])
def test_examples_in_the_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
