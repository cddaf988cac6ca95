"""What is recorded is what is read: events, lines, groups, tensors."""

from __future__ import annotations

import gzip
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.journal.events import GroupRecord, Posted, as_dict
from phalanx.journal.reader import Journal
from phalanx.journal.recording.decoder import RecordingError, load, recording_of
from phalanx.journal.recording.recorder import Recorder
from phalanx.journal.recording.recording_file import MEMBER
from phalanx.journal.writer import JournalWriter


def program() -> None:
    rank = dist.get_rank()
    t = torch.ones(4)
    dist.all_reduce(t)
    doubled = t.double()
    work = dist.all_reduce(doubled, async_op=True)
    work.wait()
    pair = dist.new_group([0, 1])
    if rank == 0:
        dist.send(t, 1, tag=3)
        dist.broadcast(t, 0, group=pair)
    elif rank == 1:
        dist.recv(t, 0, tag=3)
        dist.broadcast(t, 0, group=pair)
    dist.distributed_c10d._get_default_store().set("name", "value")
    dist.barrier()
    if rank < 2:
        dist.destroy_process_group(pair)


def plain(journal: Journal) -> list[dict[str, object]]:
    """All that is kept of an event, but its time to the last bit and notes for checks."""
    events = [as_dict(event) for event in journal.filter(kind=KEPT)]
    for event in events:
        event.pop("time")
        if "store" in event:
            event["store"] = "a number"
    return sorted(events, key=str)


KEPT = tuple(kind for kind in phalanx.journal.events.KINDS if kind != "noted")


def test_a_journal_survives_the_way_to_lines_and_back() -> None:
    with phalanx.World(ranks=3) as world:
        world.run(program)
        before = plain(world.journal)
        after = plain(recording_of(world.journal, {}).journal())
    assert len(before) > 20
    assert after == before


def test_the_recorder_writes_what_comes_while_it_watches(tmp_path) -> None:
    writer = JournalWriter(2)
    world = writer.group("world", (0, 1))
    recorder = Recorder(tmp_path / "run", writer, {"engine": "threads"})
    for serial in range(1000):
        post(writer, rank=serial % 2, group=world, serial=serial // 2)
    recorder.close({"status": "finished"})
    assert recorder.failed is None
    found = load(tmp_path / "run")
    assert found.header["engine"] == "threads"
    assert found.end == {"status": "finished"}
    assert [e.serial for e in found.journal().filter(rank=1)] == list(range(500))
    assert not found.cut
    assert found.dropped == 0


def test_what_the_rings_forgot_is_counted(tmp_path) -> None:
    writer = JournalWriter(1)
    world = writer.group("world", (0,))
    length = writer.rings[0].calls.maxlen
    assert length is not None
    for serial in range(length + 10):
        post(writer, rank=0, group=world, serial=serial)
    recorder = Recorder(tmp_path / "run", writer, {})
    recorder.close({})
    found = load(tmp_path / "run")
    assert len(found.journal()) == length
    assert found.dropped == 10


def test_a_rank_may_append_while_its_ring_is_read(tmp_path) -> None:
    class Growing(deque[Any]):
        grown = False

        def __reversed__(self) -> Any:
            found = super().__reversed__()
            if not self.grown:
                self.grown = True
                self.append(self[-1]._replace(serial=self[-1].serial + 1))
            return found

    writer = JournalWriter(1)
    world = writer.group("world", (0,))
    recorder = Recorder(tmp_path / "run", writer, {})
    recorder._ended.set()  # look by hand
    recorder._thread.join()
    ring = writer.rings[0]
    ring.calls = Growing(maxlen=ring.calls.maxlen)
    ring.posted = 2
    ring.calls.append(Posted(0.0, 0, 0, None, world, "barrier", 0, 0, 0))
    recorder.close({})
    assert recorder.failed is None
    assert [event.serial for event in load(tmp_path / "run").journal()] == [0, 1]


def test_a_file_with_a_limit_keeps_the_newest(tmp_path) -> None:
    writer = JournalWriter(1)
    world = writer.group("world", (0,))
    recorder = Recorder(tmp_path / "run", writer, {}, limit=1)
    recorder._ended.set()  # look by hand
    recorder._thread.join()
    for serial in range(40_000):
        post(writer, rank=0, group=world, serial=serial, number=hash((serial, "x")) % 10**9)
        if serial % 1000 == 999:
            recorder._look()
            recorder._flush()
    recorder.close({})
    assert recorder.failed is None
    found = load(tmp_path / "run")
    serials = [event.serial for event in found.journal()]
    assert serials == list(range(serials[0], 40_000))
    assert serials[0] > 0
    assert (tmp_path / "run").stat().st_size < 2 * 64 * 1024
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_recording_that_was_cut_is_read_as_far_as_it_goes(tmp_path) -> None:
    writer = JournalWriter(1)
    world = writer.group("world", (0,))
    recorder = Recorder(tmp_path / "run", writer, {})
    for serial in range(100):
        post(writer, rank=0, group=world, serial=serial)
    recorder._look()
    recorder._flush()
    whole = (tmp_path / "run").read_bytes()
    recorder.close({})
    (tmp_path / "cut").write_bytes(whole + (tmp_path / "run").read_bytes()[len(whole) :][:20])
    found = load(tmp_path / "cut")
    assert len(found.journal()) == 100
    assert found.cut
    assert found.end is None


def members(tmp_path: Path) -> bytes:
    """A recording of four members."""
    writer = JournalWriter(1)
    world = writer.group("world", (0,))
    recorder = Recorder(tmp_path / "run", writer, {})
    for serial in range(300):
        post(writer, rank=0, group=world, serial=serial)
        if serial in (99, 199):
            with recorder._looking:
                recorder._look()
                recorder._flush()
    recorder.close({"status": "finished"})
    data = (tmp_path / "run").read_bytes()
    assert data.count(MEMBER) == 4
    return data


def test_a_byte_that_was_changed_is_damage_and_no_end(tmp_path) -> None:
    data = members(tmp_path)
    heads = [at for at in range(len(data)) if data.startswith(MEMBER, at)]
    for place in range(len(data)):
        changed = bytes([data[place] ^ 0x10])
        (tmp_path / "bad").write_bytes(data[:place] + changed + data[place + 1 :])
        try:
            found = load(tmp_path / "bad")
        except RecordingError as error:
            assert str(error).startswith(f"{tmp_path / 'bad'}: ")
            continue
        if found.cut:  # the last member may look as if it had no end
            assert place >= heads[-1]
        else:  # some bits of a member say nothing about what is in it
            assert found.end == {"status": "finished"}
            assert len(found.journal()) == 300


def test_a_file_that_is_cut_anywhere_is_read_up_to_the_cut(tmp_path) -> None:
    data = members(tmp_path)
    head = data.index(MEMBER, 1)
    calls = set()
    for place in range(head, len(data) - 12):  # then only the checksum is missing
        (tmp_path / "cut").write_bytes(data[:place] + bytes(100 if place == head else 0))
        found = load(tmp_path / "cut")
        assert found.cut
        assert found.end is None
        calls.add(len(found.journal()))
    assert calls >= {0, 100, 200}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\x80\x04pickle", "a pickle"),
        (b'{"entries": []}', "JSON, but no recording"),
        (b"just text", "no recording of Phalanx"),
        (b"\x1f\x8bnot really gzip", "no recording of Phalanx"),
        (gzip.compress(b"just text\nand more\n", mtime=0), "no recording of Phalanx"),
        (gzip.compress(b"just text", mtime=0), "no recording of Phalanx"),
        (gzip.compress(b'{"entries": []}\n', mtime=0), "JSON, but no recording"),
        (
            gzip.compress(b'{"format": "phalanx recording", "version": 1', mtime=0),
            "its first line",
        ),
        (gzip.compress(b'{"format": "phalanx recording"', mtime=0)[:12], "its first line"),
        (
            b'{"format": "phalanx recording", "version": 1, "ranks": 2, "started": 1e300}\n',
            "1e",
        ),
        (b'{"format": "phalanx recording", "version": 99, "ranks": 2}\n', "reads up to 1"),
        (b'{"format": "phalanx recording", "version": 1, "ranks": -2}\n', "ranks=-2"),
        (b'{"format": "phalanx recording", "version": 1, "ranks": 2}\n{"kind": 3}\n', "line 2"),
        (b'{"format": "phalanx recording", "version": 1, "ranks": 2}\nrubbish\n', "line 2"),
        (b'{"format": "phalanx recording", "version": 1, "ranks": 2}\n[1]\n', "line 2"),
    ],
)
def test_a_foreign_file_is_named_for_what_it_is(tmp_path, content: bytes, says: str) -> None:
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(phalanx.UsageError, match=says):
        load(tmp_path / "run")


def test_a_recorder_says_where_it_cannot_write(tmp_path) -> None:
    with pytest.raises(phalanx.UsageError, match="No such file or directory; name a file"):
        Recorder(tmp_path / "none" / "run", JournalWriter(1), {})


def post(
    writer: JournalWriter, *, rank: int, group: GroupRecord, serial: int, number: int = 0
) -> None:
    ring = writer.rings[rank]
    ring.posted += 1
    call = Posted(float(serial), rank, 0, None, group, "barrier", serial, rank, number)
    ring.calls.append(call)
