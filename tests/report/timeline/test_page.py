"""The page of a run, in a real browser."""

from __future__ import annotations

import dataclasses
import html
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.errors import UsageError
from phalanx.journal.recording.decoder import recording_of
from phalanx.report.timeline.calls_table import CallsTable, calls_table
from phalanx.report.timeline.page import page_text, write_page
from phalanx.report.timeline.run_summary import summarize
from phalanx.report.timeline.screen_layout import plain_lines
from phalanx.report.timeline.summary_screen import screen
from tests.report.timeline.browser import CHROMIUM, Browser
from tests.report.timeline.made_up import met, posted, table_of_lines, words

pytestmark = pytest.mark.timeout(180)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'


def table_of(function: Callable[[], None], ranks: int) -> CallsTable:
    """Run a function, and take its journal as if it had been recorded."""
    facts = {"program": f"{function.__name__}.py", "engine": "threads"}
    try:
        with phalanx.World(ranks=ranks) as world:
            world.run(function)
            recording = recording_of(world.journal, facts)
            recording.end = {"status": "finished"}
    except phalanx.errors.VerdictError as error:
        assert error.journal is not None
        recording = recording_of(error.journal, facts)
        verdict = dataclasses.asdict(error.verdict)
        name = type(error).__name__
        end = {"status": "failed", "error": name, "text": str(error), "verdicts": [verdict]}
        recording.end = end
    return calls_table(recording)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Browser]]:
    """Opens the page of a table. At the end nothing may have been wrong in it."""

    def opened(
        table: CallsTable, *, size: tuple[int, int] = (1200, 800), **how: Any
    ) -> Browser:
        path = tmp_path / "page.html"
        write_page(table, path)
        browser.resize(*size)
        browser.open(path, **how)
        return browser

    browser.errors.clear()
    yield opened
    browser.evaluate("1")
    assert browser.errors == []


def corner(browser: Browser) -> tuple[float, float]:
    """Where the picture of the timeline begins, inside its border."""
    box = browser.evaluate(
        "document.getElementById('timeline').getBoundingClientRect().toJSON()"
    )
    return box["left"] + 1, box["top"] + 1


def click_on(browser: Browser, call: int) -> None:
    place = browser.evaluate(f"phalanx.place({call})")
    left, top = corner(browser)
    browser.click(left + place["x"], top + place["y"])


def state(browser: Browser) -> dict[str, Any]:
    found: dict[str, Any] = browser.evaluate("phalanx.state()")
    return found


def deadlock() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    if dist.get_rank() < 2:
        dist.recv(tensor, 1 - dist.get_rank())
    else:
        dist.barrier()


def mismatch() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(5 if dist.get_rank() == 2 else 4))


def pipeline() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for part in range(3):
        tensor = torch.ones(64)
        if rank > 0:
            dist.recv(tensor, rank - 1, tag=part)
        if rank < ranks - 1:
            dist.send(tensor, rank + 1, tag=part)
    dist.barrier()


# -- the file ------------------------------------------------------------------------------


def test_no_text_of_a_recording_is_markup(tmp_path: Path) -> None:
    table = table_of_lines(
        tmp_path, 1, [*words(op=SCRIPT, group=IMAGE), posted(0, [1])], program=SCRIPT
    )
    page = page_text(table)
    assert "alert(" not in page
    assert page.count("<script") == page.count("</script") == 2


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    page = page_text(table_of_lines(tmp_path, 1, []))
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "default-src 'none'; script-src 'sha256-" in page
    assert "innerHTML" not in page


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; name a file"):
        write_page(table_of_lines(tmp_path, 1, []), tmp_path / "missing" / "page.html")


# -- in the browser ------------------------------------------------------------------------


@needs_browser
def test_a_lane_for_each_rank_and_how_it_ended(show: Callable[..., Browser]) -> None:
    browser = show(table_of(pipeline, 4))
    assert state(browser)["rows"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert browser.text("#title") == "pipeline.py"
    assert browser.text("#badge") == "finished"
    assert browser.text("#facts").startswith("4 ranks · threads · 22 calls · ")


@needs_browser
def test_a_lane_for_each_thread(show: Callable[..., Browser], tmp_path: Path) -> None:
    lines = [posted(0, [10, 20, 30, 40], thread=[0, 139872345, 1, 0]), posted(1, [10])]
    browser = show(table_of_lines(tmp_path, 2, [*words(), *lines]))
    assert state(browser)["rows"] == ["rank 0", "thread 1", "callbacks", "rank 1"]
    browser.evaluate("phalanx.select(1)")
    assert "thread1" in browser.text("#panel dl")


@needs_browser
def test_what_a_check_found_is_listed_and_marked(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    found = {"kind": "finding-made", "rank": 1, "n": 1, "time": [900], "ranks": {"all": [1]}}
    found |= {"about": "message-race", "severity": "warning"}
    lines = [posted(rank, [10, 1000]) for rank in range(2)]
    browser = show(table_of_lines(tmp_path, 2, [*words(), *lines, found]))
    assert "message-race (warning): rank 1" in browser.text("#verdicts")
    browser.evaluate("document.querySelector('#verdicts button').click()")
    assert state(browser)["from"] < 900 < state(browser)["to"] < 1100
    assert "a check found something" in browser.text("#legend")


@needs_browser
def test_the_page_opens_where_the_verdict_is(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    times = [1000 * n for n in range(1, 500)]
    block = {"ranks": [1], "odd": True, "op": {"name": "all_reduce", "number": 498}}
    verdict = {"kind": "mismatch", "severity": "error", "ranks": [1], "blocks": [block]}
    end = {"end": {"status": "failed", "verdicts": [verdict]}}
    lines = [*(posted(rank, times) for rank in range(2)), met(1, times[:-1]), end]
    browser = show(table_of_lines(tmp_path, 2, [*words(), *lines]))
    assert state(browser)["selection"] == 2 * 499 - 1
    assert 470_000 < state(browser)["from"] < 499_000 < state(browser)["to"]
    browser.evaluate("document.getElementById('whole').click()")
    assert state(browser)["from"] < 1000


@needs_browser
def test_messages_are_arrows_and_have_a_matrix(show: Callable[..., Browser]) -> None:
    browser = show(table_of(pipeline, 4))
    assert state(browser)["drawn"]["arrows"] == 9
    browser.evaluate(
        "document.querySelectorAll('#more details').forEach((d) => (d.open = true))"
    )
    browser.wait("document.querySelectorAll('#more table').length === 3")
    rows = "[...document.querySelectorAll('#more tr')].map((row) => row.innerText)"
    assert "0\t1\t3\t768 B" in browser.evaluate(rows)


@needs_browser
def test_a_click_shows_the_call_its_line_and_its_counterparts(
    show: Callable[..., Browser],
) -> None:
    browser = show(table_of(pipeline, 2))
    browser.evaluate("phalanx.setFolding(false)")
    last = browser.evaluate("phalanx.state().calls") - 1
    click_on(browser, last)
    browser.wait(f"phalanx.state().selection === {last}")
    panel = browser.text("#panel")
    assert "barrier of rank 1" in panel
    assert "test_page.py" in panel
    assert "dist.barrier()" in browser.text("#panel .here")
    assert "rank 0: barrier at" in panel
    browser.evaluate("document.querySelector('#panel li button').click()")
    assert "barrier of rank 0" in browser.text("#panel")


@needs_browser
def test_the_verdict_of_a_deadlock_is_drawn(show: Callable[..., Browser]) -> None:
    browser = show(table_of(deadlock, 4))
    assert "DeadlockError" in browser.text("#badge")
    assert "ranks 0 and 1 wait for each other" in browser.text("#verdicts")
    assert "needs a send from rank 1" in browser.text("#report pre")
    assert "deadlock: waits for rank" in browser.text("#panel")
    assert browser.evaluate("document.querySelectorAll('#more svg rect').length") == 3
    assert browser.evaluate("document.querySelectorAll('#more svg path[stroke]').length") == 4


@needs_browser
def test_the_arrows_of_the_graph_end_between_the_boxes(show: Callable[..., Browser]) -> None:
    browser = show(table_of(everybody_receives, 4))
    browser.wait("phalanx.state().ready")
    inside = browser.evaluate(
        """(() => {
          const all = (what) => [...document.querySelectorAll(`#more svg ${what}`)];
          const boxes = all("rect").map((box) => box.getBBox());
          const ends = all("path.wait-edge").flatMap((edge) =>
            [edge.getPointAtLength(0), edge.getPointAtLength(edge.getTotalLength())]);
          const near = (at, box, by) => at.x > box.x - by && at.x < box.x + box.width + by
            && at.y > box.y - by && at.y < box.y + box.height + by;
          const count = (by) => ends.filter((at) => boxes.some((box) => near(at, box, by)));
          return [ends.length, count(0).length, count(5).length];
        })()"""
    )
    assert inside == [8, 0, 8]


def everybody_receives() -> None:
    dist.recv(torch.ones(4), (dist.get_rank() + 1) % dist.get_world_size())


def one_fails() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("bad batch")
    dist.barrier()


@needs_browser
def test_a_rank_that_came_after_the_verdict_is_not_waited_for(
    show: Callable[..., Browser],
) -> None:
    with pytest.raises(phalanx.RankFailedError) as raised:
        phalanx.run(one_fails, ranks=4)
    assert raised.value.timeline is not None
    browser = show(raised.value.timeline._table)
    table = browser.text("#panel")
    assert "never met" not in table
    assert "rank-failed: waits for rank 1;" in table or "waits for rank 1\n" in table
    assert "rank 1: never came" in table
    screen_text = str(raised.value.timeline)
    assert "3 calls never met: barrier" in screen_text
    assert "open" not in screen_text.partition("operation")[2]


def one_is_late() -> None:
    for _ in range(3):
        if dist.get_rank() == 1:
            time.sleep(0.05)
        dist.barrier()


@needs_browser
def test_a_straggler_is_named(show: Callable[..., Browser]) -> None:
    browser = show(table_of(one_is_late, 3))
    browser.wait("phalanx.state().ready")
    assert browser.text("#notes").startswith("Others waited for rank 1 for ")
    assert browser.text("#stragglers").startswith("others waited for rank 1 for ")
    assert "came last" in browser.text("#more section.broad thead")
    assert "1 (3x, " in browser.text("#more section.broad tbody")


@needs_browser
def test_a_line_is_one_row_though_its_group_was_made_again(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    again = {"group": 1, "name": "world", "ranks": list(range(64)), "backend": "gloo"}
    first, second = posted(0, [10, 20]), posted(0, [30, 40], group=1, serial={"from": 2})
    browser = show(table_of_lines(tmp_path, 1, [*words(), again, first, second]))
    browser.wait("phalanx.state().ready")
    rows = "document.querySelectorAll('#more section.broad tbody tr').length"
    assert browser.evaluate(rows) == 1


def two_receives() -> None:
    dist.recv(torch.ones(4), 1 - dist.get_rank())


@needs_browser
def test_messages_that_nobody_sent_are_told_as_on_the_screen(
    show: Callable[..., Browser],
) -> None:
    table = table_of(two_receives, 2)
    told = "2 messages never sent: 1 from 0 to 1, 1 from 1 to 0"
    assert told in plain_lines(screen(summarize(table)))
    browser = show(table)
    browser.wait("phalanx.state().ready")
    assert told in browser.text("#more")
    assert "only met in collectives" not in browser.text("#more")
    assert "nobody" not in browser.text("#panel").lower()


@needs_browser
def test_the_rank_that_differs_is_named(show: Callable[..., Browser]) -> None:
    browser = show(table_of(mismatch, 4))
    panel = browser.text("#panel")
    assert "all_reduce of rank 2" in panel
    assert "mismatch: differs in shape" in panel
    assert "float32[5]" in panel
    assert "ranks 0, 1, 3: all_reduce at" in panel


@needs_browser
@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("all_reduce", 192),
        ("rank 3", 3),
        ("rank:62-63 all_reduce", 6),
        ("train.py:20", 1),
        ("line:20", 1),
        ("other", 1),
        ("group:world", 192),
        ("nothing", 0),
    ],
)
def test_search(show: Callable[..., Browser], tmp_path: Path, query: str, count: int) -> None:
    times = [1000, 2000, 3000]
    lines = [posted(rank, times) for rank in range(63)]
    lines += [posted(63, times, site=[0, 0, 1]), met(63, times)]
    browser = show(table_of_lines(tmp_path, 64, [*words(), *lines]))
    field = "document.getElementById('search')"
    browser.evaluate(f"{field}.value = {query!r}; {field}.dispatchEvent(new Event('input'))")
    assert state(browser)["hits"] == count
    assert browser.text("#found") == f"{count} call" + ("" if count == 1 else "s")


@needs_browser
def test_many_ranks_open_folded(show: Callable[..., Browser], tmp_path: Path) -> None:
    times = [1000, 2000, 3000]
    lines = [posted(rank, times) for rank in range(1024) if rank != 77]
    lines += [posted(77, times[:2]), met(5, times[:2])]
    group = {"group": 0, "name": "world", "ranks": list(range(1024)), "backend": "gloo"}
    browser = show(table_of_lines(tmp_path, 1024, [*words()[:-1], group, *lines]))
    assert state(browser)["rows"] == ["[0-76, 78-1023]", "rank 77"]
    browser.evaluate("document.getElementById('fold').click()")
    assert len(state(browser)["rows"]) == 1024
    browser.evaluate("document.getElementById('timeline').focus()")
    browser.key("f")
    browser.wait("phalanx.state().rows.length === 2")
    browser.key("ArrowRight")
    browser.key(" ")
    browser.wait("phalanx.state().rows.length === 1024")


@needs_browser
def test_everything_works_by_keyboard(show: Callable[..., Browser]) -> None:
    browser = show(table_of(mismatch, 4))
    browser.evaluate("document.getElementById('timeline').focus()")
    browser.key("Home")
    assert state(browser)["selection"] == 8
    browser.key("ArrowRight")
    assert state(browser)["selection"] == 9
    browser.key("ArrowDown")
    assert "of rank 3" in browser.text("#panel")
    assert browser.text("#announce").startswith("rank 3: all_reduce")
    browser.key("Enter")
    assert browser.evaluate("document.activeElement.id") == "panel"
    browser.key("Escape")
    assert browser.evaluate("document.activeElement.id") == "timeline"
    span = state(browser)["to"] - state(browser)["from"]
    browser.key("+")
    assert state(browser)["to"] - state(browser)["from"] < span
    browser.key("0")
    browser.key("v")
    assert "mismatch" in browser.text("#panel")
    browser.key("/")
    assert browser.evaluate("document.activeElement.id") == "search"


@needs_browser
def test_every_picture_has_a_table(show: Callable[..., Browser]) -> None:
    browser = show(table_of(deadlock, 4))
    browser.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    browser.wait("document.querySelector('#calls table')")
    browser.wait("document.querySelectorAll('#more table').length === 3")
    assert browser.evaluate("document.querySelectorAll('#calls tbody tr').length") == 8


@needs_browser
def test_hostile_text_is_shown_as_text(show: Callable[..., Browser], tmp_path: Path) -> None:
    names = words(op=SCRIPT, file=SCRIPT + ".py", group=IMAGE)
    verdict = {"kind": SCRIPT, "severity": "error", "ranks": [0], "headline": IMAGE}
    verdict["blocks"] = [{"ranks": [0], "odd": True, "op": {"name": SCRIPT, "number": 0}}]
    verdict["blocks"] += [
        {"ranks": [1], "op": {"name": SCRIPT}, "view": {"wait": {"needs": [0]}}}
    ]
    end = {"status": "failed", "error": IMAGE, "text": SCRIPT + IMAGE, "verdicts": [verdict]}
    calls = [posted(rank, [10, 20], name=SCRIPT, reduce_op=IMAGE) for rank in range(2)]
    found = {"kind": "finding-made", "rank": 0, "n": 1, "time": [5], "ranks": {"all": [0]}}
    found |= {"about": SCRIPT, "severity": IMAGE}
    table = table_of_lines(
        tmp_path, 2, [*names, *calls, found, {"end": end}], program=SCRIPT, engine=IMAGE
    )
    browser = show(table)
    assert browser.text("#title") == SCRIPT
    assert IMAGE in browser.text("#facts")
    assert SCRIPT + IMAGE in browser.text("#report pre")
    panel = browser.text("#panel")
    assert f"{SCRIPT} of rank 0" in panel
    assert f"{SCRIPT}.py:10" in panel
    assert IMAGE in panel
    assert f"dist.{SCRIPT}(t)" in browser.text("#panel .here")
    browser.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    browser.wait("document.querySelector('#calls table')")
    assert SCRIPT in browser.text("#calls table")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.querySelectorAll('script').length") == 1


@needs_browser
@pytest.mark.parametrize("size", [(800, 600), (1920, 1080)])
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_small_and_wide(
    show: Callable[..., Browser], size: tuple[int, int], dark: bool
) -> None:
    browser = show(table_of(mismatch, 4), size=size, dark=dark)
    assert state(browser)["theme"] == ("dark" if dark else "light")
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    browser.evaluate("document.getElementById('theme').click()")
    assert state(browser)["theme"] == ("light" if dark else "dark")
    browser.evaluate("localStorage.clear()")


@needs_browser
def test_the_wheel_zooms_and_a_drag_moves(show: Callable[..., Browser]) -> None:
    browser = show(table_of(mismatch, 4))
    left, top = corner(browser)
    x, y = left + 400, top + 60
    before = state(browser)
    browser.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-400)
    browser.wait(f"phalanx.state().to < {before['to']}")
    before = state(browser)
    browser.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left")
    browser.send(
        "Input.dispatchMouseEvent", type="mouseMoved", x=x - 90, y=y, button="left", buttons=1
    )
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", x=x - 90, y=y, button="left")
    browser.wait(f"phalanx.state().from > {before['from']}")


@needs_browser
def test_a_page_in_a_frame_of_a_notebook(
    browser: Browser, show: Callable[..., Browser], tmp_path: Path
) -> None:
    text = page_text(table_of(pipeline, 2), inline=True)
    path = tmp_path / "notebook.html"
    path.write_text(f'<iframe srcdoc="{html.escape(text)}" width="900" height="500"></iframe>')
    browser.send("Page.navigate", url=path.as_uri())
    frame = "document.querySelector('iframe')?.contentWindow"
    browser.wait(f"{frame}?.phalanx?.state().ready")
    assert browser.evaluate(f"{frame}.phalanx.state().rows") == ["rank 0", "rank 1"]


@needs_browser
def test_a_damaged_page_says_so(browser: Browser, tmp_path: Path) -> None:
    text = page_text(table_of_lines(tmp_path, 1, []))
    path = tmp_path / "page.html"
    cut = text.index("</script>")
    path.write_text(text[: cut - 60] + text[cut:])
    browser.send("Page.navigate", url=path.as_uri())
    browser.wait("document.getElementById('trouble')?.hidden === false")
    assert "is the file whole?" in browser.text("#trouble")
    browser.errors.clear()
