"""Find out what files are, and read them: paths to dumps by kind and rank.

A file that was named and cannot be read is an error; one that lies in a folder beside others is
left out, and the report says so. Nothing in a file is trusted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import UsageError
from phalanx.explain.black_box_file import is_black_box, read_black_box
from phalanx.explain.flight_recorder import is_flight_recorder, read_flight_recorder
from phalanx.explain.plain_pickle import LARGEST, load_plain
from phalanx.explain.pyspy_stacks import is_pyspy, read_pyspy
from phalanx.explain.rank_dump import (
    MOST_RANKS,
    DumpError,
    RankDump,
    ThreadStack,
)
from phalanx.journal.recording.decoder import Recording, load
from phalanx.journal.recording.kept_runs import LAST, find_run

BLACK_BOX, FLIGHT_RECORDER, RECORDING = "black box", "Flight Recorder", "recording"
MOST_FILES = 1 << 17
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class FoundRecording:
    """A recording; one that was `named` is to be explained, one in a folder may be left out."""

    name: str
    recording: Recording
    named: bool


@dataclass
class FoundDumps:
    """What the paths led to: dumps by kind, then by rank."""

    dumps: dict[str, dict[int, RankDump]] = field(default_factory=dict)
    recordings: list[FoundRecording] = field(default_factory=list)
    stacks: list[tuple[str, int, list[ThreadStack]]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Files of a folder that were left out: the name, a colon, and why."""
    unread_of: list[tuple[int, str]] = field(default_factory=list)
    """Those among them that have a number in their name."""

    def unreadable(self, kind: str) -> dict[int, str]:
        """Files that could not be read and are named as those of a kind are, by rank: of ranks
        that have no other."""
        dumps = self.dumps.get(kind, {})
        shapes = {_shape(dump.file) for dump in dumps.values()}
        return {
            rank: file
            for rank, file in self.unread_of
            if rank not in dumps and _shape(file) in shapes
        }

    def add(self, dump: RankDump) -> None:
        of_kind = self.dumps.setdefault(dump.kind, {})
        other = of_kind.get(dump.rank)
        if other is not None:
            older = dump.taken is not None and (other.taken or 0.0) > dump.taken
            kept, left = (other, dump) if older else (dump, other)
            self.unread.append(
                f"{left.file}: rank {dump.rank} has another {dump.kind} file, {kept.file}; "
                "that one was read"
            )
            dump = kept
        of_kind[dump.rank] = dump


def read_dumps(paths: Sequence[str | os.PathLike[str]]) -> FoundDumps:
    """Read files, and what lies in folders; LAST is the newest run that was kept. Raises
    `UsageError`."""
    found = FoundDumps()
    for given in paths:
        path = find_run(LAST) if os.fspath(given) == LAST else Path(given)
        if path.is_dir():
            _read_folder(path, found)
        elif path.exists():
            _read_file(path, found, named=True)
        else:
            raise DumpError(f"{path}: there is no such file or folder")
    if not (found.dumps or found.recordings):
        where = ", ".join(str(path) for path in paths)
        said = "".join(f"\n  {line}" for line in found.unread[:4])
        raise DumpError(
            f"{where}: no dump of the Flight Recorder, no black box and no recording here{said}"
        )
    _keep_one_run(found)
    _give_stacks(found)
    return found


def _read_folder(folder: Path, found: FoundDumps) -> None:
    for number, path in enumerate(_files_below(folder)):
        if number >= MOST_FILES:
            raise DumpError(f"{folder}: more than {MOST_FILES} files; give the folder of dumps")
        try:
            _read_file(path, found, named=False)
        except UsageError as error:
            found.unread.append(str(error))
            rank = _rank_in(path)
            if rank is not None:
                found.unread_of.append((rank, str(path)))


def _files_below(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(where, name)


def _read_file(path: Path, found: FoundDumps, *, named: bool) -> None:
    name = str(path)
    try:
        if not path.is_file():
            raise DumpError(f"{name}: this is no file that can be read")
        if path.stat().st_size > LARGEST and path.open("rb").read(2) != _GZIP:
            raise DumpError(f"{name}: {path.stat().st_size >> 20} MiB; no dump is that large")
        with path.open("rb") as file:
            start = file.read(2)
            data = b"" if start == _GZIP else start + file.read()
    except OSError as error:
        raise DumpError(f"{name}: {error.strerror or error}") from None
    if start == _GZIP or data.lstrip().startswith(b'{"format": "phalanx recording'):
        found.recordings.append(FoundRecording(name, load(path), named))
    elif not data:
        raise DumpError(f"{name}: the file is empty; the rank died before it wrote")
    elif data[:1] == b"\x80" or _looks_pickled(data):
        _add_flight_recorder(load_plain(data, name), path, found)
    else:
        _add_text(data, path, found)


def _looks_pickled(data: bytes) -> bool:
    """Protocols 0 and 1 have no mark; both end with a stop, and neither is JSON."""
    return data.endswith(b".") and data[:1] in b"(}]c]lduI" and data[:1] not in b"{["


def _add_text(data: bytes, path: Path, found: FoundDumps) -> None:
    name = str(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise DumpError(
            f"{name}: neither a dump of the Flight Recorder nor a file of ours; what wrote it?"
        ) from None
    if is_pyspy(text):
        pid, threads = read_pyspy(text)
        found.stacks.append((name, pid, threads))
        return
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        begins = text.lstrip()[:1]
        what = "JSON that ends in the middle" if begins == "{" else "text of another kind"
        raise DumpError(
            f"{name}: {what}; explain reads dumps of the Flight Recorder, black boxes, "
            "recordings and what py-spy prints"
        ) from None
    if is_black_box(value):
        found.add(read_black_box(value, name))
    else:
        _add_flight_recorder(value, path, found)


def _add_flight_recorder(value: Any, path: Path, found: FoundDumps) -> None:
    name = str(path)
    if not is_flight_recorder(value):
        raise DumpError(
            f"{name}: it can be read, but it is no dump of the Flight Recorder (no 'version' "
            "and 'entries'); was it made by another tool?"
        )
    rank = _rank_in(path)
    if rank is None:
        raise DumpError(
            f"{name}: which rank was it? torch's dumps end with the rank, such as "
            "nccl_trace_rank_3; rename the file"
        )
    try:
        found.add(read_flight_recorder(value, rank, name))
    except DumpError:
        raise
    except Exception as error:  # of any kind: the file is not trusted
        raise DumpError(
            f"{name}: this is no whole dump of the Flight Recorder ({type(error).__name__}: "
            f"{str(error)[:80]}); was it changed?"
        ) from None


def _rank_in(path: Path) -> int | None:
    """The last number in the file's name."""
    numbers = re.findall(r"\d+", path.name.partition(".")[0] or path.name)
    if not numbers or len(numbers[-1]) > 6 or int(numbers[-1]) >= MOST_RANKS:
        return None
    return int(numbers[-1])


def _shape(file: str) -> str:
    """The file's name without the rank in it: dumps of one job share it."""
    stem, dot, ending = Path(file).name.partition(".")
    return re.sub(r"\d+(?=\D*$)", "#", stem) + dot + ending


def _keep_one_run(found: FoundDumps) -> None:
    """A folder may have black boxes of an earlier start that had more ranks."""
    dumps = found.dumps.get(BLACK_BOX, {})
    newest = max(dumps.values(), key=lambda each: each.taken or 0.0, default=None)
    for rank, dump in list(dumps.items()):
        if newest is not None and dump.run != newest.run:
            found.unread.append(f"{dump.file}: of an earlier start of the program")
            del dumps[rank]


def _give_stacks(found: FoundDumps) -> None:
    """Stacks of py-spy go to the dumps of the same process, or of the rank in their name."""
    for name, pid, threads in found.stacks:
        ranks = {
            dump.rank
            for dumps in found.dumps.values()
            for dump in dumps.values()
            if dump.pid == pid and pid
        }
        rank = next(iter(ranks)) if len(ranks) == 1 else _rank_in(Path(name))
        for dumps in found.dumps.values():
            dump = dumps.get(rank) if rank is not None else None
            if dump is not None and not dump.threads:
                dump.threads = [_in_call(thread, dump) for thread in threads]


def _in_call(thread: ThreadStack, dump: RankDump) -> ThreadStack:
    """py-spy does not tell the call, but one that is open and at the same line is the one."""
    at = dump.first_open
    if not thread.is_main or at is None or not thread.lines:
        return thread
    site, here = dump.calls[at].site, thread.lines[-1]
    same = site is None or (site.file, site.function) == (here.file, here.function)
    waits = thread.doing.startswith(("wait", "all_", "barrier", "broadcast", "reduce", "recv"))
    if not (same or waits):
        return thread
    return ThreadStack(thread.name, thread.lines, True, at, thread.doing)
