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
from phalanx.journal.recording.recorder import FORMAT
from phalanx.journal.recording.recording_file import GZIP
from phalanx.journal.ring import Ring
from phalanx.model import Site, TensorSpec

LARGEST = 4 << 30
"""Bytes of text in a recording: more is not one of ours."""
MOST_RANKS = 1 << 20
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
    """The text of all members; ends early where the file is cut."""
    unpacker = zlib.decompressobj(GZIP)
    begun, total = False, 0
    while data := file.read(CHUNK):
        if not begun and not data.startswith(b"\x1f\x8b"):
            if data.lstrip().startswith(b'{"format"'):
                yield data
                yield from iter(lambda: file.read(CHUNK), b"")
                return
            raise RecordingError(_not_ours(name, data))
        begun = True
        while data:
            try:
                text = unpacker.decompress(data, CHUNK * 16)
            except zlib.error:
                return
            total += len(text)
            if total > LARGEST:
                raise RecordingError(
                    f"{name}: more than {LARGEST >> 30} GiB of text; no recording is that large"
                )
            yield text
            data = unpacker.unconsumed_tail
            if unpacker.eof:
                data = unpacker.unused_data
                unpacker = zlib.decompressobj(GZIP)
    if not begun:
        raise RecordingError(f"{name}: the file is empty; did the run ever begin?")


def _not_ours(name: str, data: bytes) -> str:
    what = "a pickle" if data[:1] == b"\x80" else "no recording"
    if data[:1] in (b"{", b"["):
        what = "JSON, but no recording"
    return (
        f"{name}: this is {what} of Phalanx; give the file that --record wrote, or use "
        "'phalanx explain' for what another tool left behind"
    )


class _Lines:
    """Whole lines; `cut` says that the last one was not."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.cut = False

    def __iter__(self) -> Iterator[str]:
        rest = b""
        for chunk in self._chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "surrogateescape")
        self.cut = bool(rest)


# -- from lines to a recording --------------------------------------------------------------


def _read(lines: Iterable[str], name: str) -> Recording:
    found: Recording | None = None
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if found is None:
                found = Recording(_checked_header(value, name))
            else:
                _add(found, value)
        except RecordingError:
            raise
        except Exception as error:  # of any kind: the file is not trusted
            raise RecordingError(
                f"{name}: line {number} is no line of a recording ({type(error).__name__}: "
                f"{str(error)[:80]}); was the file changed?"
            ) from None
    if found is None:
        raise RecordingError(f"{name}: the header is missing; the run ended before it began")
    found.cut = getattr(lines, "cut", False) or found.end is None
    # A recorder begins before the first event; time begins with it in a run that is kept.
    found.from_rings = any(block.count and block["time"][0] == 0 for block in found.blocks)
    return found


def _checked_header(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise RecordingError(_not_ours(name, b"{"))
    version = value.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise RecordingError(
            f"{name}: version {version!r} of the schema; this Phalanx reads up to {VERSION}. "
            "Update Phalanx, or read it with the version that wrote it"
        )
    _number_of_ranks(value.get("ranks"))
    return value


def _number_of_ranks(given: Any) -> int:
    if type(given) is not int or not 0 < given <= MOST_RANKS:
        raise ValueError(f"ranks={given!r}")
    return given


def _add(found: Recording, line: dict[str, Any]) -> None:
    if "kind" in line:
        found.blocks.append(_block(found, line))
    elif "site" in line:
        file, number, function, around = line["at"]
        site = Site(str(file), int(number), str(function))
        first, *texts = around or [0]
        _put(found.sites, line["site"], SourceLine(site, int(first), tuple(map(str, texts))))
    elif "tensors" in line:
        specs = tuple(TensorSpec(str(d), tuple(map(int, s)), str(v)) for d, s, v in line["are"])
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
