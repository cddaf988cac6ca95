"""How long the page of a large run takes to make, and a browser to open and to move.

    python benchmarks/timeline_page.py [--ranks 64] [--calls 20000] [--keep FOLDER]

The run is made up: all ranks make the same collectives, some of them asynchronous, at times
that jitter. The browser is chromium, without a window and without a GPU. Figures of Python are
processor time. `opened` is the time from the start of the navigation until the first picture is
drawn; `frame` the mean and the longest time to draw one picture while the view moves.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from phalanx.journal.events import (
    VERSION,
    Completed,
    Event,
    GroupRecord,
    Met,
    Posted,
    WaitBegan,
    WaitEnded,
)
from phalanx.journal.recording.decoder import load
from phalanx.journal.recording.encoder import Encoder
from phalanx.journal.recording.recorder import FORMAT
from phalanx.journal.recording.recording_file import RecordingFile
from phalanx.model import Site
from phalanx.report.timeline.calls_table import calls_table
from phalanx.report.timeline.page import write_page

STEP = 20
"""Calls of one step; the last three are asynchronous."""
SITES = [Site("train.py", 10 + n, "step") for n in range(STEP)]
TENSORS = [("float32", (64, n + 1), "cpu") for n in range(STEP)]


def events_of(rank: int, ranks: int, calls: int, group: GroupRecord) -> Iterator[list[Event]]:
    """The events of one rank, step by step; what all share is the same for each rank."""
    for first in range(0, calls, STEP):
        common, own = random.Random(first), random.Random(first * 10007 + rank)
        events: list[Event] = []
        for nth in range(min(STEP, calls - first)):
            serial = first + nth
            met = (serial + 1) * 50e-6 + common.random() * 10e-6
            start = met - own.random() * 25e-6
            last = common.randrange(ranks)
            later = nth >= STEP - 3
            events.append(
                Posted(
                    start,
                    rank,
                    0,
                    SITES[nth],
                    group,
                    ("all_gather" if later else "all_reduce"),
                    serial,
                    rank,
                    number=serial,
                    reduce_op=None if later else 0,
                    asynchronous=later,
                    signature=TENSORS[nth],
                )
            )
            if rank == last:
                events.append(Met(met, rank, 0, None, group, serial))
                events.append(Completed(met + 2e-6, rank, 0, None, group, serial))
            else:
                call = (rank, serial)
                if later:
                    events.append(WaitBegan(start + 2e-6, rank, 0, None, group, call))
                events.append(WaitEnded(met + 3e-6, rank, 0, None, group, call))
        yield events


def write_recording(path: Path, ranks: int, calls: int) -> None:
    encoder = Encoder(0.0)
    group = GroupRecord(0, "world", tuple(range(ranks)))
    facts = {"format": FORMAT, "version": VERSION, "ranks": ranks, "engine": "threads"}
    head = json.dumps(facts)
    file = RecordingFile(path, 1 << 32, lambda: [head])
    for rank in range(ranks):
        pending: list[Event] = []
        for events in events_of(rank, ranks, calls, group):
            pending += events
            if len(pending) > 4000:
                file.append(encoder.encode(pending))
                pending = []
        if pending:
            file.append(encoder.encode(pending))
    file.append(['{"end": {"status": "finished"}}'])
    file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--keep", type=Path, help="a folder for the recording and the page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        recording = folder / f"run-{given.ranks}x{given.calls}.phalanx"
        if not recording.exists():
            write_recording(recording, given.ranks, given.calls)
        began = time.process_time()
        table = calls_table(load(recording))
        read = time.process_time()
        page = folder / f"page-{given.ranks}x{given.calls}.html"
        write_page(table, page)
        made = time.process_time()
        print(f"recording  {recording.stat().st_size / 1e6:8.1f} MB")
        print(f"read       {read - began:8.2f} s")
        print(f"page made  {made - read:8.2f} s")
        print(f"page       {page.stat().st_size / 1e6:8.1f} MB")
        look(page, Path(temporary) / "profile")


def look(page: Path, profile: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report" / "timeline"))
    from browser import CHROMIUM, Browser  # type: ignore[import-not-found]

    if CHROMIUM is None:
        print("no chromium: the browser's part is left out")
        return
    with Browser(profile, width=1600, height=900) as browser:
        opened = []
        for _ in range(5):
            browser.open(page)
            opened.append(browser.evaluate("phalanx.opened.page") / 1e3)
        again = ", ".join(f"{seconds:.2f}" for seconds in opened[1:])
        print(f"opened     {opened[0]:8.2f} s, again {again}")
        for folded in ("true", "false"):
            browser.evaluate(f"phalanx.setFolding({folded}); phalanx.draw()")
            times = browser.evaluate(FRAMES)
            lanes = len(browser.evaluate("phalanx.state().rows"))
            mean, longest = sum(times) / len(times), max(times)
            print(
                f"frame      {mean:8.1f} ms in the mean, {longest:.1f} at most ({lanes} lanes)"
            )
        assert not browser.errors, browser.errors


FRAMES = """(() => {
  const times = [], whole = phalanx.state().to;
  for (const part of [1, 0.3, 0.05, 0.01, 0.001])
    for (let n = 0; n < 12; n++) {
      const from = (whole * (1 - part) * n) / 12;
      phalanx.setView(from, from + whole * part);
      phalanx.draw();
      times.push(phalanx.state().drawn.milliseconds);
    }
  phalanx.setView(0, whole);
  return times;
})()"""


if __name__ == "__main__":
    main()
