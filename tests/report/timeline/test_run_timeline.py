"""Runs in memory, as a notebook shows them."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.report.timeline.browser import CHROMIUM, Browser


def step() -> None:
    dist.all_reduce(torch.ones(4))


def hang() -> None:
    step()
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def test_a_world_shows_its_last_run(tmp_path: Path) -> None:
    with phalanx.World(ranks=2) as world:
        world.run(step)
        timeline = world.timeline()
    assert str(timeline).startswith("World in test_run_timeline.py: 2 ranks on threads, ")
    assert timeline.summary()["operations"][0]["operation"] == "all_reduce"
    assert timeline.summary()["status"] == "finished"
    timeline.save(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    with pytest.raises(phalanx.UsageError, match="name a file in a folder that exists"):
        timeline.save(tmp_path / "none" / "run.html")


def test_a_notebook_shows_it_in_a_frame() -> None:
    with phalanx.World(ranks=2) as world:
        world.run(step)
        shown = world.timeline()._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" ')
    found = re.search(r'srcdoc="([^"]*)"', shown)
    assert found is not None
    assert html.unescape(found[1]).startswith("<!doctype html>")


def test_an_error_shows_the_run_that_raised_it() -> None:
    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(hang, ranks=2)
    error = caught.value
    assert error.timeline.summary()["error"] == "DeadlockError"
    assert "failed: DeadlockError" in str(error.timeline)
    assert str(error._repr_html_()).startswith("<iframe ")
    assert phalanx.UsageError("x")._repr_html_() is None


def test_the_next_run_has_its_own_end() -> None:
    with phalanx.World(ranks=2) as world:
        with pytest.raises(phalanx.DeadlockError):
            world.run(hang)
        world.run(step)
        assert world.timeline().summary()["status"] == "finished"


def five() -> None:
    for _ in range(5):
        step()


def five_then_hang() -> None:
    five()
    hang()


def test_the_second_run_has_its_own_calls_and_misses_none() -> None:
    with phalanx.World(ranks=2) as world:
        world.run(five)
        world.run(five)
        found = world.timeline().summary()
        assert [fold["calls"] for fold in found["folds"]] == [5]
        assert found["missing"] == []
        with pytest.raises(phalanx.DeadlockError) as caught:
            world.run(five_then_hang)
    found = caught.value.timeline.summary()
    assert {fold["calls"] for fold in found["folds"]} == {7}
    assert found["missing"] == []


def uneven_calls() -> None:
    alone = dist.new_group([1])
    if dist.get_rank() == 1:
        dist.barrier(alone)


def many() -> None:
    for _ in range(9000):
        dist.barrier()


def test_an_earlier_run_does_not_keep_ranks_apart() -> None:
    with phalanx.World(ranks=2) as world:
        world.run(uneven_calls)
        world.run(five)
        found = world.timeline().summary()
    assert [fold["ranks"] for fold in found["folds"]] == [[0, 1]]


def test_calls_that_a_ring_forgot_are_missing() -> None:
    with phalanx.World(ranks=2, checks="none") as world:
        world.run(five)
        world.run(many)
        found = world.timeline().summary()
        kept = len(world.journal.calls(0))
    (fold,) = found["folds"]
    assert (fold["calls"], fold["calls"] + fold["forgotten"]) == (kept, 9000)
    assert found["missing"] == [
        f"the {2 * (9000 - kept):,} oldest calls: only the newest were kept"
    ]


def test_nothing_is_imported_before_somebody_looks() -> None:
    look = "import sys, phalanx; phalanx.World; "
    look += "print([name for name in sys.modules if 'timeline' in name])"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert found.stdout == "[]\n"


@pytest.mark.programs
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_the_frame_works_in_a_browser(tmp_path: Path) -> None:
    with phalanx.World(ranks=2) as world:
        world.run(step)
        shown = world.timeline()._repr_html_()
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><meta charset='utf-8'>{shown}")
    with Browser(tmp_path / "profile") as browser:
        browser.send("Page.navigate", url=page.as_uri())
        browser.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        browser.wait("document.querySelector('iframe') !== null")
        # Nobody can look into a sandbox: the frame shows something, and nothing went wrong.
        browser.until(lambda: _has_a_picture(browser), "a picture in the frame")
        assert browser.errors == []


def _has_a_picture(browser: Browser) -> bool:
    return len(browser.send("Page.captureScreenshot")["data"]) > 20_000
