"""Reads recordings: what `phalanx report` and all that draws or explains a run begins with.

Needs no torch. A recording is not trusted: whatever is wrong with it becomes a
`RecordingError`, which says what the file is and what to do. A file that ends in the middle,
because its process died, is read as far as it goes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from phalanx.errors import UsageError
from phalanx.journal.events import KINDS, VERSION, Event, GroupRecord
from phalanx.journal.reader import Journal
from phalanx.journal.recording.encoder import LAYOUTS, Encoder
from phalanx.journal.recording.event_rules import check_blocks, check_tensor
from phalanx.journal.recording.recorder import FORMAT
from phalanx.journal.recording.recording_file import GZIP, MAGIC, MEMBER
from phalanx.journal.ring import Ring
from phalanx.model import Site, TensorSpec

LARGEST = 4 << 30
"""Bytes of text in a recording: more is not one of ours."""
MOST_RANKS = 1 << 20
MOST_SECONDS = 1 << 36
"""Since 1970: no run begins later."""
HEAD = json.dumps({"format": FORMAT})[:-1].encode()
"""With this the text of a recording begins."""
CHUNK = 1 << 20
FLOW = ("met", "completed", "wait-began", "wait-ended", "store-read", "store-written")
"""Kinds of events in the second lane of a ring."""


class RecordingError(UsageError):
    """A file that is no recording, or not one that this version reads."""


@dataclass(frozen=True)
class EventBlock:
    """Events of one kind and one rank, as columns: `block["name"][3]` is the name of the
    fourth. Columns that all events share are `Shared`."""

    kind: str
    rank: int
    count: int
    columns: dict[str, Sequence[Any]]

    def __getitem__(self, name: str) -> Sequence[Any]:
        found = self.columns.get(name)
        if found is None:
            found = Shared(LAYOUTS[KINDS[self.kind]].defaults.get(name), self.count)
        return found


class Shared(Sequence[Any]):
    """A column with one value."""

    __slots__ = ("length", "value")

    def __init__(self, value: Any, length: int) -> None:
        self.value = value
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.value] * len(range(*place.indices(self.length)))
        return self.value

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.length):
            yield self.value


@dataclass
class SourceLine:
    """Where calls were made: the line, and the lines around it as they were then."""

    site: Site
    first: int = 0
    around: tuple[str, ...] = ()


@dataclass
class Recording:
    """A run as it was recorded. Times are nanoseconds since it began."""

    header: dict[str, Any]
    sites: list[SourceLine] = field(default_factory=list)
    tensors: list[tuple[TensorSpec, ...]] = field(default_factory=list)
    groups: dict[int, GroupRecord] = field(default_factory=dict)
    blocks: list[EventBlock] = field(default_factory=list)
    end: dict[str, Any] | None = None
    """How the run ended; None if its process died, or is still running."""
    dropped: int = 0
    """Events that were lost because ranks were quicker than the recorder; `from_rings`, those
    that the rings had forgotten."""
    from_rings: bool = False
    """Whether this is what rings still held at the end of a run, not what a recorder wrote
    meanwhile."""
    firsts: list[int] | None = None
    """The serial of the first call that each rank made in this run, where that is known:
    serials go on from run to run of a `World`."""
    cut: bool = False
    """Whether the file ends in the middle of something."""

    @property
    def ranks(self) -> int:
        return int(self.header["ranks"])

    @property
    def duration(self) -> int:
        """Nanoseconds from the beginning to the last event."""
        return max((max(b.columns["time"], default=0) for b in self.blocks), default=0)

    def of_kind(self, *kinds: str) -> Iterator[EventBlock]:
        return (block for block in self.blocks if block.kind in kinds)

    def journal(self) -> Journal:
        """All events as objects, for readers of a `Journal`. Columns are quicker."""
        rings = [Ring(self._most_events()) for _ in range(self.ranks)]
        events: list[list[Event]] = [[] for _ in rings]
        for block in self.blocks:
            events[block.rank] += self._events(block)
        for ring, these in zip(rings, events, strict=True):
            for event in sorted(these, key=lambda event: event.time):
                _append(ring, event)
        return Journal(rings, self.groups)

    def _most_events(self) -> int:
        return max(1, sum(block.count for block in self.blocks))

    def _events(self, block: EventBlock) -> Iterator[Event]:
        kind = KINDS[block.kind]
        columns: list[Iterable[Any]] = []
        for name in kind._fields:
            if name == "time":
                columns.append([time / 1e9 for time in block["time"]])
            elif name == "rank":
                columns.append(Shared(block.rank, block.count))
            elif name == "mark":
                column = block["site"]
                columns.append([None if n is None else self.sites[n].site for n in column])
            elif name == "signature":
                column = block["tensors"]
                columns.append([None if n is None else self.tensors[n] for n in column])
            elif name in ("group", "world"):
                column = block[name]
                columns.append([None if n is None else self.groups[n] for n in column])
            elif name in ("call", "calls"):
                columns.append([_as_tuples(value) for value in block[name]])
            else:
                columns.append(block[name])
        return (kind(*values) for values in zip(*columns, strict=True))


def _append(ring: Ring, event: Event) -> None:
    kind = event.kind
    if kind == "posted":
        if not ring.calls:
            ring.first = event.serial  # type: ignore[union-attr]
        ring.posted = event.serial + 1  # type: ignore[union-attr]
        ring.calls.append(event)
    elif kind in FLOW:
        ring.flowed += 1
        ring.flow.append(event)
    else:
        ring.add(event)


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(v) for v in value) if isinstance(value, list) else value


def load(path: str | os.PathLike[str]) -> Recording:
    """Read a recording. Raises `RecordingError`."""
    name = os.fspath(path)
    try:
        if os.path.exists(name) and not os.path.isfile(name):  # a FIFO would have us wait
            raise OSError(0, "this is no regular file")
        with open(name, "rb") as file:
            lines = _Lines(_unpacked(file, name))
            return _read(lines, name)
    except OSError as error:
        raise RecordingError(
            f"{name}: {error.strerror or error}; give the file that --record wrote, or LAST"
        ) from None


def recording_of(journal: Journal, header: dict[str, Any]) -> Recording:
    """A journal that is in memory, as if it had been recorded. Notes are for checks alone, and
    not missed."""
    events = list(journal)
    start = events[0].time if events else 0.0
    encoder = Encoder(start)
    of_ranks: list[list[Event]] = [[] for _ in range(journal.ranks)]
    for event in events:
        of_ranks[event.rank].append(event)
    lines = [line for these in of_ranks if these for line in encoder.encode(these)]
    first = {"format": FORMAT, "version": VERSION, "ranks": journal.ranks, **header}
    found = _read([json.dumps(first, default=str), *lines], "journal")
    rings = journal._rings
    found.from_rings, found.firsts = True, [ring.first for ring in rings]
    found.dropped = sum(ring.dropped - ring.noted + len(ring.notes) for ring in rings)
    return found


# -- from bytes to lines -------------------------------------------------------------------


def _unpacked(file: Any, name: str) -> Iterator[bytes]:
    """The text of all members; ends early where the file is cut. A process that dies leaves the
    beginning of a member: whatever else is wrong, the file was damaged."""
    unpacker = zlib.decompressobj(GZIP)
    total = read = member = 0
    while data := file.read(CHUNK):
        if not read and not data.startswith(MAGIC):
            if data.lstrip().startswith(b'{"format"'):
                yield data
                yield from iter(lambda: file.read(CHUNK), b"")
                return
            raise RecordingError(_not_ours(name, data))
        read += len(data)
        while data:
            try:
                text = unpacker.decompress(data, CHUNK * 16)
            except zlib.error:
                if not total:
                    raise RecordingError(_not_ours(name, data)) from None
                if _has_only_zeros(file, member):  # a machine that died left them
                    return
                raise RecordingError(_damaged(name, member)) from None
            total += len(text)
            if total > LARGEST:
                raise RecordingError(
                    f"{name}: more than {LARGEST >> 30} GiB of text; no recording is that large"
                )
            yield text
            data = unpacker.unconsumed_tail
            if unpacker.eof:
                data = unpacker.unused_data
                member = read - len(data)
                unpacker = zlib.decompressobj(GZIP)
    if not read:
        raise RecordingError(f"{name}: the file is empty; did the run ever begin?")
    if member < read and _has_later_member(file, member):
        raise RecordingError(_damaged(name, member))


def _has_only_zeros(file: Any, start: int) -> bool:
    file.seek(start)
    return not any(data.strip(b"\0") for data in iter(lambda: file.read(CHUNK), b""))


def _has_later_member(file: Any, start: int) -> bool:
    """Whether a member begins after the one at `start`, which has no end."""
    file.seek(start + 1)
    rest = b""
    while data := file.read(CHUNK):
        if MEMBER in rest + data:
            return True
        rest = data[1 - len(MEMBER) :]
    return False


def _damaged(name: str, start: int) -> str:
    return (
        f"{name}: the file is damaged after byte {start:,}: what is there is not what was "
        "written. Copy it once more from where it was recorded"
    )


def _not_ours(name: str, data: bytes) -> str:
    what = "a pickle" if data[:1] == b"\x80" else "no recording"
    if data[:1] in (b"{", b"["):
        what = "JSON, but no recording"
    return (
        f"{name}: this is {what} of Phalanx; give the file that --record wrote, or use "
        "'phalanx explain' for what another tool left behind"
    )


class _Lines:
    """Whole lines; `rest` is what the last one has, if it is not whole."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.rest = b""

    def __iter__(self) -> Iterator[str]:
        rest = b""
        for chunk in self._chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "surrogateescape")
        self.rest = rest


# -- from lines to a recording --------------------------------------------------------------


def _read(lines: Iterable[str], name: str) -> Recording:
    found: Recording | None = None
    number = 0
    try:
        for line in lines:
            number += 1
            if found is None:
                found = Recording(_checked_header(line, name))
            else:
                _add(found, json.loads(line))
    except RecordingError:
        raise
    except Exception as error:  # of any kind: the file is not trusted
        raise _bad_line(name, number, error) from None
    rest = getattr(lines, "rest", b"")
    if found is None:
        if not HEAD.startswith(rest[: len(HEAD)]):
            raise RecordingError(_not_ours(name, rest))
        raise RecordingError(
            f"{name}: the file ends within its first line, and nothing of the run is in it; "
            "was it copied as a whole?"
        )
    try:
        check_blocks(found)
    except Exception as error:
        raise RecordingError(
            f"{name}: the events of this recording do not fit together ({str(error)[:80]}); "
            "was the file changed?"
        ) from None
    found.cut = bool(rest) or found.end is None
    # A recorder begins before the first event; time begins with it in a run that is kept.
    found.from_rings = any(block["time"][0] == 0 for block in found.blocks)
    return found


def _bad_line(name: str, number: int, error: Exception) -> RecordingError:
    return RecordingError(
        f"{name}: line {number} is no line of a recording ({type(error).__name__}: "
        f"{str(error)[:80]}); was the file changed?"
    )


def _checked_header(line: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        raise RecordingError(_not_ours(name, b"")) from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise RecordingError(_not_ours(name, b"{"))
    version = value.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise RecordingError(
            f"{name}: version {version!r} of the schema; this Phalanx reads up to {VERSION}. "
            "Update Phalanx, or read it with the version that wrote it"
        )
    _number_of_ranks(value.get("ranks"))
    if not isinstance(started := value.get("started", 0), (int, float)) or not (
        0 <= started < MOST_SECONDS
    ):
        raise ValueError(f"started={str(started)[:20]}")
    return value


def _number_of_ranks(given: Any) -> int:
    if type(given) is not int or not 0 < given <= MOST_RANKS:
        raise ValueError(f"ranks={given!r}")
    return given


def _add(found: Recording, line: dict[str, Any]) -> None:
    if not isinstance(line, dict):
        raise ValueError("this is no JSON object")
    if "kind" in line:
        found.blocks.append(_block(found, line))
    elif "site" in line:
        file, number, function, around = line["at"]
        site = Site(str(file), int(number), str(function))
        first, *texts = around or [0]
        _put(found.sites, line["site"], SourceLine(site, int(first), tuple(map(str, texts))))
    elif "tensors" in line:
        specs = tuple(TensorSpec(str(d), tuple(map(int, s)), str(v)) for d, s, v in line["are"])
        for spec in specs:
            check_tensor(spec.shape)
        _put(found.tensors, line["tensors"], specs)
    elif "group" in line:
        number = int(line["group"])
        record = found.groups.setdefault(number, GroupRecord(number, "", ()))
        record.name, record.ranks = str(line["name"]), tuple(map(int, line["ranks"]))
        record.backend = str(line.get("backend", ""))
        record.description = str(line.get("description", ""))
    elif "dropped" in line:
        found.dropped += int(line["dropped"])
    elif "end" in line:
        found.end = dict(line["end"])
    elif "ranks" in line:  # a later world of the same program has more
        found.header["ranks"] = max(found.ranks, _number_of_ranks(line["ranks"]))
    # A line of another kind is one that a later version of the same schema adds.


def _put(table: list[Any], number: int, value: Any) -> None:
    """Definitions come in order, and again in a file that was cut at the front."""
    if number == len(table):
        table.append(value)
    elif not 0 <= number < len(table):
        raise ValueError(f"number {number} comes before {len(table)}")


def _block(found: Recording, line: dict[str, Any]) -> EventBlock:
    kind, rank, count = line["kind"], line["rank"], line["n"]
    if kind not in KINDS or type(rank) is not int or not 0 <= rank < found.ranks:
        raise ValueError(f"kind {kind!r} of rank {rank!r}")
    if type(count) is not int or count < 1:
        raise ValueError(f"{count!r} events")
    columns: dict[str, Sequence[Any]] = {"time": list(accumulate(line["time"]))}
    if len(columns["time"]) != count:
        raise ValueError(f"{len(columns['time'])} times for {count} events")
    for name, value in line.items():
        if name in ("kind", "rank", "n", "time"):
            continue
        if isinstance(value, list):
            columns[name] = value
        elif isinstance(value, dict) and "from" in value:
            columns[name] = range(value["from"], value["from"] + count)
        else:
            columns[name] = Shared(value["all"] if isinstance(value, dict) else value, count)
        if name == "call":
            columns[name] = [[rank, c] if isinstance(c, int) else c for c in columns[name]]
        if len(columns[name]) != count:
            raise ValueError(f"{name} has {len(columns[name])} values for {count} events")
    return EventBlock(kind, rank, count, columns)
