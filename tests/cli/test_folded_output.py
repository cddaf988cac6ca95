from __future__ import annotations

import doctest
import io
import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.cli import folded_output
from phalanx.cli.folded_output import FoldingPrinter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Folded:
    """A printer with its sink and clock at hand; `shown` empties the sink."""

    def __init__(self, ranks: int, *, only: frozenset[int] | None = None) -> None:
        self.clock = Clock()
        self.sink = io.StringIO()
        self.printer = FoldingPrinter(
            ranks, sink=self.sink, hold=0.1, only=only, clock=self.clock
        )

    def write(self, ranks: str, text: str) -> None:
        for rank in ranks:
            assert self.printer.write(int(rank), text) == len(text)

    def shown(self) -> list[str]:
        lines = self.sink.getvalue().splitlines()
        self.sink.seek(0)
        self.sink.truncate()
        return lines

    def rest(self) -> list[str]:
        self.printer.close()
        return self.shown()


def test_the_docstring_tells_the_truth() -> None:
    outcome = doctest.testmod(folded_output)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_a_line_of_all_ranks_is_shown_once_and_at_once() -> None:
    folded = Folded(4)
    folded.write("012", "epoch 1 loss 0.42\n")
    assert folded.shown() == []
    folded.write("3", "epoch 1 loss 0.42\n")
    assert folded.shown() == ["[0-3] epoch 1 loss 0.42"]
    assert folded.rest() == []


def test_a_single_rank_never_waits() -> None:
    folded = Folded(1)
    folded.write("0", "one\ntwo\n")
    assert folded.shown() == ["[0] one", "[0] two"]


def test_the_same_line_twice_is_shown_twice() -> None:
    folded = Folded(2)
    folded.write("0", "step\nstep\n")
    folded.write("1", "step\n")
    assert folded.shown() == ["[0-1] step"]
    folded.write("1", "step\n")
    assert folded.shown() == ["[0-1] step"]


def test_lines_before_a_folded_one_go_first() -> None:
    folded = Folded(3)
    for rank in "012":
        folded.write(rank, f"I am {rank}\n")
    folded.write("012", "ready\n")
    assert folded.shown() == ["[0]   I am 0", "[1]   I am 1", "[2]   I am 2", "[0-2] ready"]


def test_ranks_that_run_one_after_the_other_fold_what_they_share() -> None:
    folded = Folded(3)
    for rank in "012":
        folded.write(rank, f"I am {rank}\nready\nsetting up\n{rank} is set up\ngo\n")
    assert folded.shown() == [
        *["[0]   I am 0", "[1]   I am 1", "[2]   I am 2", "[0-2] ready", "[0-2] setting up"],
        *["[0]   0 is set up", "[1]   1 is set up", "[2]   2 is set up", "[0-2] go"],
    ]


def test_lines_that_moved_can_be_joined_and_have_others_move_before_them() -> None:
    folded = Folded(4)
    folded.write("0", "even\nready\n")
    folded.write("1", "odd\nready\n")
    folded.write("2", "even\nready\n")
    folded.write("3", "I am 3\nodd\nready\n")
    assert folded.shown() == ["[0, 2] even", "[3]   I am 3", "[1, 3] odd", "[0-3] ready"]


def test_an_entry_before_a_line_shared_with_others_is_not_joined() -> None:
    folded = Folded(3)
    folded.write("0", "a\nb\n")
    folded.write("1", "b\na\n")
    assert folded.rest() == ["[0]   a", "[0-1] b", "[1]   a"]


def test_a_line_stays_where_it_is_once_another_rank_has_joined_it() -> None:
    folded = Folded(3)
    folded.write("0", "ready\n")
    folded.write("1", "b\n")
    folded.write("2", "b\n")
    folded.write("1", "ready\n")
    assert folded.rest() == ["[0]   ready", "[1-2] b", "[1]   ready"]


def test_ranks_that_diverge_fold_as_far_as_they_agree() -> None:
    folded = Folded(4)
    folded.write("023", "even\n")
    folded.write("1", "odd\n")
    assert folded.shown() == []
    assert folded.rest() == ["[0, 2-3] even", "[1]   odd"]


def test_partial_lines_wait_for_their_newline() -> None:
    folded = Folded(2)
    folded.write("0", "los")
    folded.write("1", "loss ")
    folded.write("0", "s 1\nnext")
    assert folded.shown() == []
    folded.write("1", "1\n")
    assert folded.shown() == ["[0-1] loss 1"]
    assert folded.rest() == ["[0]   next"]


def test_an_empty_line_is_a_line_and_an_empty_write_is_nothing() -> None:
    folded = Folded(2)
    folded.write("01", "")
    folded.write("01", "\n")
    folded.printer.close()
    assert folded.sink.getvalue() == "[0-1]\n"


@pytest.mark.parametrize(
    "chunks",
    [
        ["\r 10%", "\r 50%", "\r100%", "\n"],
        [" 10%\r", " 50%\r", "100%\r", "\n"],
        [" 10%\r 50%\r100%\n"],
        ["\r 50%\r", "100%", "\r\n"],
        ["\r 50%", "\r", "10", "0%\n"],
    ],
)
def test_a_progress_bar_shows_its_last_state(chunks: list[str]) -> None:
    folded = Folded(1)
    for chunk in chunks:
        folded.write("0", chunk)
    assert folded.shown() == ["[0] 100%"]


def test_a_progress_bar_that_wipes_itself_out_leaves_nothing() -> None:
    folded = Folded(1)
    for chunk in ["\r 10%", "\r100%", "\r    \r"]:
        folded.write("0", chunk)
    assert folded.rest() == []


def test_a_progress_bar_keeps_one_state_only() -> None:
    folded = Folded(1)
    for _ in range(1000):
        folded.write("0", "\r" + "#" * 80)
    partial = folded.printer._partial[0]
    assert sum(map(len, partial._pieces)) == 80


def test_an_entry_is_shown_when_it_has_waited_long_enough() -> None:
    folded = Folded(2)
    folded.write("0", "early\n")
    folded.clock.now = 0.06
    folded.write("0", "late\n")
    folded.clock.now = 0.09
    folded.printer.tick()
    assert folded.shown() == []
    folded.clock.now = 0.11
    folded.printer.tick()
    assert folded.shown() == ["[0]   early"]
    folded.write("1", "early\nlate\n")
    # Its "early" comes too late to be folded, and must not be shown after its "late".
    assert folded.shown() == ["[1]   early", "[0-1] late"]


def test_what_moves_in_front_of_an_entry_does_not_make_it_wait_longer() -> None:
    folded = Folded(3)
    folded.write("0", "ready\n")
    folded.clock.now = 0.06
    folded.write("1", "I am 1\nready\n")
    folded.write("2", "other\n")
    folded.clock.now = 0.11
    folded.printer.tick()
    assert folded.shown() == ["[1]   I am 1", "[0-1] ready"]
    folded.clock.now = 0.17
    folded.printer.tick()
    assert folded.shown() == ["[2]   other"]


def test_nobody_waits_for_a_rank_that_has_finished() -> None:
    folded = Folded(3)
    folded.write("01", "x\n")
    assert folded.shown() == []
    folded.printer.finish(2)
    assert folded.shown() == ["[0-1] x"]
    folded.write("01", "y\n")
    assert folded.shown() == ["[0-1] y"]


def test_the_last_line_of_a_finished_rank_still_folds() -> None:
    folded = Folded(2)
    folded.write("0", "bye")
    folded.printer.finish(0)
    folded.printer.finish(0)
    assert folded.shown() == []
    folded.write("1", "bye\n")
    assert folded.shown() == ["[0-1] bye"]


def test_a_finished_rank_may_still_print() -> None:
    folded = Folded(2)
    folded.printer.finish(0)
    folded.write("0", "from a forgotten thread\n")
    assert folded.shown() == []
    folded.write("1", "from a forgotten thread\n")
    assert folded.shown() == ["[0-1] from a forgotten thread"]


def test_close_folds_partial_lines_and_later_text_passes_through() -> None:
    folded = Folded(3)
    folded.write("012", "done")
    assert folded.rest() == ["[0-2] done"]
    folded.write("1", "afterwards\n")
    assert folded.shown() == ["[1]   afterwards"]


def test_only_the_ranks_asked_for_are_shown_and_counted() -> None:
    folded = Folded(4, only=frozenset({1, 3}))
    folded.write("0123", "x\n")
    assert folded.shown() == ["[1, 3] x"]
    folded.write("02", "hidden\n")
    folded.write("3", "mine\n")
    folded.printer.finish(0)
    assert folded.shown() == []
    folded.printer.finish(1)
    assert folded.shown() == ["[3]    mine"]


def test_only_nobody_shows_nothing() -> None:
    folded = Folded(2, only=frozenset())
    folded.write("01", "x\n")
    folded.printer.finish(0)
    assert folded.rest() == []


def test_only_must_name_ranks_that_exist() -> None:
    with pytest.raises(ValueError, match=r"only=\[1, 4\].*there are 4, numbered from 0"):
        FoldingPrinter(4, sink=io.StringIO(), only=frozenset({1, 4}))


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (1, "[0] x"),
        (2, "[0]   x"),
        (10, "[0]   x"),
        (11, "[0]    x"),
        (1000, "[0]     x"),
    ],
)
def test_labels_are_as_wide_as_the_label_of_all_ranks(ranks: int, line: str) -> None:
    folded = Folded(ranks)
    folded.write("0", "x\n")
    assert folded.rest() == [line]


# The limits below are no measurements: each test takes about a second at most, and a scan
# over all pending lines instead of a search would take many.


@pytest.mark.timeout(30)
@pytest.mark.parametrize("same", [False, True])
def test_thousands_of_pending_lines_stay_cheap(same: bool) -> None:
    lines = ["" if same else f"step {number}" for number in range(10_000)]
    folded = Folded(4)
    for rank in range(4):
        for line in lines:
            folded.printer.write(rank, line + "\n")
    assert len(folded.shown()) == len(lines)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("own", ["rank {rank} step {step}", "rank {rank}", "{step}", ""])
@pytest.mark.parametrize("common", ["step {step} done", "done"])
def test_thousands_of_lines_that_move_stay_cheap(own: str, common: str) -> None:
    folded = Folded(8)
    printed = [
        (rank, text.format(rank=rank, step=step) + "\n")
        for rank in range(8)
        for step in range(5_000)
        for text in (own, common)
    ]
    for rank, line in printed:
        folded.printer.write(rank, line)
    assert len(folded.shown()) == 5_000 * (9 if "rank" in own else 2)


@pytest.mark.timeout(30)
def test_thousands_of_lines_that_move_at_once_stay_cheap() -> None:
    folded = Folded(8)
    folded.write("0", "ready\n")
    for rank in "1234567":
        for _ in range(10_000):
            folded.write(rank, f"I am {rank}\n")
        folded.write(rank, "ready\n")
    assert folded.shown() == [
        *(f"[{rank}]   I am {rank}" for rank in range(1, 8) for _ in range(10_000)),
        "[0-7] ready",
    ]


def test_a_text_that_always_waits_somewhere_takes_no_more_room() -> None:
    folded = Folded(2)
    folded.write("0", "step\n")
    for _ in range(1000):
        folded.write("01", "step\n")
    assert len(folded.printer._pending._same["step"]._all) < 5


def test_lines_that_move_leave_nothing_behind() -> None:
    folded = Folded(2)
    for _ in range(1000):
        folded.write("0", "I am 0\nready\n")
        folded.write("1", "I am 1\nready\n")
    pending = folded.printer._pending
    assert len(pending._queue) < 5
    assert not any(pending._alone.values())
    assert not pending._same


@pytest.mark.timeout(30)
def test_many_small_pieces_stay_cheap() -> None:
    folded = Folded(1)
    for _ in range(100_000):
        folded.printer.write(0, ".")
    assert folded.rest() == ["[0] " + "." * 100_000]


def test_a_broken_sink_is_the_callers_business_and_stops_nothing_else() -> None:
    class Pipe(io.StringIO):
        broken = True

        def write(self, text: str) -> int:
            if self.broken:
                raise BrokenPipeError
            return super().write(text)

    sink = Pipe()
    printer = FoldingPrinter(1, sink=sink)
    with pytest.raises(BrokenPipeError):
        printer.write(0, "lost\n")
    sink.broken = False
    printer.write(0, "kept\n")
    assert sink.getvalue() == "[0] kept\n"


def test_text_that_comes_in_while_printing_is_printed_next() -> None:
    class Echo(io.StringIO):
        """Prints from inside a print, as a finalizer or a signal handler may."""

        def write(self, text: str) -> int:
            if "first" in text:
                printer.write(0, "second\n")
            return super().write(text)

    sink = Echo()
    printer = FoldingPrinter(1, sink=sink)
    printer.write(0, "first\nthird\n")
    assert sink.getvalue() == "[0] first\n[0] third\n[0] second\n"


def test_threads_may_print_at_the_same_time() -> None:
    folded = Folded(4)
    lines = [f"line {number}" for number in range(500)]

    def print_all(rank: int) -> None:
        for line in lines:
            folded.printer.write(rank, line[:3])
            folded.printer.write(rank, line[3:] + "\n")
            folded.printer.tick()

    threads = [threading.Thread(target=print_all, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = folded.rest()
    assert [lines_of(rank, shown) for rank in range(4)] == [lines] * 4


def lines_of(rank: int, shown: list[str]) -> list[str]:
    """The lines that carry this rank in their label, without the label."""
    lines = []
    for line in shown:
        label, text = re.fullmatch(r"\[([\d, -]+)\] *(.*)", line).groups()
        for run in label.split(", "):
            low, _, high = run.partition("-")
            if int(low) <= rank <= int(high or low):
                lines.append(text)
    return lines


# Few different texts, so that they fold in all sorts of ways; no blanks at their ends, which
# the label's padding would hide.
words = st.sampled_from(["a", "b", "c", "", "x y", "[0] z"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("print"), st.integers(0, 3), words, st.integers(0, 4)),
        st.tuples(st.just("finish"), st.integers(0, 3), st.just(""), st.just(0)),
        st.tuples(st.just("pass time"), st.just(0), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(steps)
def test_every_rank_keeps_its_lines_and_their_order(
    steps: list[tuple[str, int, str, int]],
) -> None:
    folded = Folded(4)
    printed: list[list[str]] = [[], [], [], []]
    for action, rank, word, cut in steps:
        if action == "print":
            printed[rank].append(word)
            line = word + "\n"
            folded.printer.write(rank, line[:cut])
            folded.printer.write(rank, line[cut:])
        elif action == "finish":
            folded.printer.finish(rank)
        else:
            folded.clock.now += 0.06
            folded.printer.tick()
    shown = folded.rest()
    assert [lines_of(rank, shown) for rank in range(4)] == printed


@settings(deadline=None)
@given(st.lists(words, max_size=30), st.randoms(use_true_random=False))
def test_ranks_that_print_alike_fold_completely_in_any_interleaving(lines, random) -> None:
    folded = Folded(3)
    left = [list(reversed(lines)) for _ in range(3)]
    while any(left):
        rank = random.choice([rank for rank in range(3) if left[rank]])
        folded.printer.write(rank, left[rank].pop() + "\n")
    assert folded.shown() == [f"[0-2] {line}".rstrip() for line in lines]


@settings(deadline=None)
@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 3), words), max_size=20))
def test_lines_shared_by_all_fold_whatever_each_rank_prints_between(
    ranks: int, stretches: list[tuple[int, str]]
) -> None:
    folded = Folded(ranks)
    expected = []
    for number, (count, word) in enumerate(stretches):
        for rank in range(ranks):
            expected += [f"[{rank}]   {number} by {rank}"] * count
        expected.append(f"[0-{ranks - 1}] {word}".rstrip())
    for rank in range(ranks):
        for number, (count, word) in enumerate(stretches):
            folded.printer.write(rank, f"{number} by {rank}\n" * count + f"{word}\n")
    assert folded.shown() == expected


def fold_by_the_rule(ranks: int, printed: list[tuple[int, str]]) -> list[tuple[str, set[int]]]:
    """What is to be shown of these lines, by trying every pending entry in turn."""
    shown: list[tuple[str, set[int]]] = []
    pending: list[tuple[str, set[int]]] = []
    for rank, line in printed:
        for place, (text, members) in enumerate(pending):
            behind = [entry for entry in pending[place:] if rank in entry[1]]
            if text == line and all(entry[1] == {rank} for entry in behind):
                if rank in members:
                    continue
                members.add(rank)
                still = [entry for entry in pending[place + 1 :] if entry not in behind]
                pending[place:] = [*behind, (text, members), *still]
                if len(members) == ranks:
                    end = place + len(behind) + 1
                    shown += pending[:end]
                    del pending[:end]
                break
        else:
            pending.append((line, {rank}))
    return shown + pending


@settings(deadline=None, max_examples=500)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcde")), max_size=80))
def test_lines_fold_by_the_rule(printed: list[tuple[int, str]]) -> None:
    folded = Folded(4)
    for rank, line in printed:
        folded.printer.write(rank, line + "\n")
    assert folded.rest() == [
        f"{folded_output._label(members):5} {text}"
        for text, members in fold_by_the_rule(4, printed)
    ]


def test_an_unfinished_line_that_asks_is_shown_at_the_flush() -> None:
    sink = io.StringIO()
    printer = FoldingPrinter(2, sink=sink)
    printer.write(0, "held\n")
    printer.write(1, "(Pdb) ")
    printer.prompt(1)
    assert sink.getvalue() == "[0]   held\n[1]   (Pdb) "
    printer.write(1, "42\n")
    printer.write(1, "50 %|##  ")
    printer.prompt(1)  # a progress bar is no question
    printer.close()
    assert sink.getvalue().endswith("(Pdb) [1]   42\n[1]   50 %|##  \n")


def test_what_waits_comes_before_what_a_rank_writes_by_itself() -> None:
    sink = io.StringIO()
    printer = FoldingPrinter(2, sink=sink)
    printer.write(0, "> program.py(5)\n")
    assert not sink.getvalue()
    printer.make_room(0)
    assert sink.getvalue() == "[0]   > program.py(5)\n"
