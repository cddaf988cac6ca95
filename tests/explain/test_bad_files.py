"""Files that are truncated, foreign, too new or hostile: one sentence, exit status 2, and
nothing in them is carried out."""

from __future__ import annotations

import collections
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.main import main
from phalanx.explain.dump_files import read_dumps
from phalanx.explain.explanation import explain
from phalanx.explain.explanation_text import render_explanation
from phalanx.explain.plain_pickle import load_plain
from phalanx.explain.rank_dump import DumpError
from tests.explain.dumps import dump, entry, write


class Runs:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


class Sets:
    """One that builds an object with state of its own."""

    def __init__(self) -> None:
        self.anything = 1


def doubled_tuples(times: int) -> bytes:
    """A tuple that holds the one before it twice, and so on: a walk through it never ends."""
    return b"K\x01" + b"2\x86" * times


def hostile(marker: Path) -> dict[str, bytes]:
    command = f"touch {marker}"
    by_hand = b"cos\nsystem\n(S'" + command.encode() + b"'\ntR."
    return {
        "reduce": pickle.dumps(Runs(command)),
        "reduce-0": pickle.dumps(Runs(command), 0),
        "inside": pickle.dumps({**dump([]), "more": [Runs(command)]}),
        "by hand": by_hand,
        "inst": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "getattr": pickle.dumps(getattr),
        "object": pickle.dumps(Sets()),
        "counter": pickle.dumps(collections.Counter("aab")),
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "huge": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
        "deep": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "itself": b"\x80\x02]q\x00h\x00a.",
        "shared": b"\x80\x02" + doubled_tuples(60) + b".",
        "keys": b"\x80\x02}" + doubled_tuples(60) + b"Ns.",
    }


@pytest.mark.parametrize("kind", list(hostile(Path("x"))))
def test_a_hostile_pickle_is_not_carried_out(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "carried_out"
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(hostile(marker)[kind])
    assert main(["explain", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"phalanx: {file}: ")
    assert said.count("\n") == 1
    assert not marker.exists()


def test_plain_data_comes_through() -> None:
    value: dict[str, Any] = {"a": [1, -2, 3.5, True, None], "b": ("x",), "d": 1 << 80}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert load_plain(pickle.dumps(value, protocol), "x") == value
    value |= {"c": {1, 2}, "e": b"y"}  # which older protocols write by naming functions
    for protocol in (4, 5):
        assert load_plain(pickle.dumps(value, protocol), "x") == value


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_truncated_dump(tmp_path: Path, part: float, form: str) -> None:
    write(tmp_path, dump([entry("all_reduce", n) for n in range(1, 9)]), form=form)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(DumpError, match=r"ends in the middle|no dump"):
        read_dumps([file])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rank_0", b"", "the file is empty"),
        ("rank_0", b"\x89PNG\r\n\x1a\n\xff", "what wrote it?"),
        ("rank_0", b"Traceback (most recent call last):\n", "text of another kind"),
        ("rank_0", b"[1, 2]", "no dump of the Flight Recorder"),
        ("rank_0", b"\x1f\x8bnothing", "header is missing|no recording"),
        ("rank_0", pickle.dumps([1, 2]), "no dump of the Flight Recorder"),
        ("rank_0", pickle.dumps(dump([], version="3.1")), "version 3.1 .* Update Phalanx"),
        ("rank_0", pickle.dumps(dump([], version="x")), "is none of the Flight Recorder"),
        ("rank_0", pickle.dumps({**dump([]), "entries": "no"}), "no list of entries"),
        ("rank_0", pickle.dumps({**dump([]), "entries": [3]}), "no list of entries"),
        ("trace", pickle.dumps(dump([])), "which rank was it"),
        ("rank_99999999", pickle.dumps(dump([])), "which rank was it"),
        ("b.json", b'{"format": "phalanx black box", "version": 9}', "Update Phalanx"),
        ("b.json", b'{"format": "phalanx black box", "version": 1}', "no whole file"),
    ],
)
def test_foreign_and_too_new_files(
    tmp_path: Path,
    name: str,
    content: bytes,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(Exception, match=said):
        read_dumps([file])
    assert main(["explain", str(file)]) == 2
    assert main(["explain", str(tmp_path)]) == 2


def damaged_entries() -> dict[str, Any]:
    whole = entry("all_reduce", 1)
    return {
        "nothing": {},
        "text for numbers": {**whole, "collective_seq_id": "x", "record_id": "y"},
        "no sizes": {**whole, "input_sizes": 7, "output_sizes": None},
        "odd sizes": {**whole, "input_sizes": [["a"]], "input_dtypes": 3},
        "group is a number": {**whole, "process_group": 3},
        "group is empty": {**whole, "process_group": []},
        "frames are odd": {**whole, "frames": [1, {"filename": 3, "line": "z"}]},
        "huge": {**whole, "collective_seq_id": 1 << 70, "time_created_ns": 1 << 90},
        "negative": {**whole, "collective_seq_id": -5},
        "peer that is not there": entry("send 0->77", 1, done=False),
        "escapes": {**whole, "profiling_name": "nccl:<b>\x1b[31m\x07", "frames": []},
    }


@pytest.mark.parametrize("kind", list(damaged_entries()))
def test_a_damaged_entry_does_no_harm(kind: str, tmp_path: Path) -> None:
    """Either it is left out or the file is refused; nothing else is raised."""
    write(tmp_path, dump([damaged_entries()[kind]]), dump([entry("all_reduce", 1)]))
    try:
        text = render_explanation(explain(read_dumps([tmp_path])))
    except DumpError as error:
        text = str(error)
    assert text.isascii()
    assert "\x1b" not in text
    assert "\x07" not in text


def test_files_beside_others_are_left_out_and_said(tmp_path: Path) -> None:
    fine = dump([entry("barrier", 1)])
    write(tmp_path, fine, fine)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "nccl_trace_rank_2").write_bytes(pickle.dumps(Runs("true")))
    found = explain(read_dumps([tmp_path]))
    assert not found.found
    assert [text.partition(":")[0] for text in found.unread] == [
        str(tmp_path / "nccl_trace_rank_2"),
        str(tmp_path / "notes.txt"),
    ]
    assert any("would build objects or call functions" in text for text in found.unread)


def test_a_rank_that_is_too_large_for_any_world(tmp_path: Path) -> None:
    odd = dump([entry("barrier", 1)])
    odd["pg_config"]["0"]["ranks"] = json.dumps([0, 10**9])
    (tmp_path / "rank_0").write_bytes(pickle.dumps(odd))
    assert main(["explain", str(tmp_path)]) == 2


def black_box(**changed: Any) -> bytes:
    whole: dict[str, Any] = {
        "format": "phalanx black box",
        "version": 1,
        "rank": 0,
        "world": 2,
        "pid": 7,
        "taken": 1.5,
        "status": "running",
        "dropped": 0,
        "sites": [["train.py", 3, "step", "dist.barrier()"]],
        "groups": [["0", "0", [0, 1], "gloo", ""]],
        "tensors": [["float32", [4], "cpu", [1]]],
        "calls": [call_row()],
        "threads": [["MainThread", True, [0], 0, "barrier", None]],
    }
    return json.dumps({**whole, **changed}).encode()


def call_row(**changed: Any) -> list[Any]:
    names = (
        "time site name group number root peer tag op inputs outputs splits done made source"
    )
    row = [1, 0, "barrier", 0, 0, None, None, None, None, [0], [], [[], []], False, None, None]
    return list({**dict(zip(names.split(), row, strict=True)), **changed}.values())


def test_a_black_box_made_by_hand_is_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_bytes(black_box())
    (found,) = read_dumps([tmp_path]).dumps["black box"].values()
    assert (found.rank, found.world, found.waits_in) == (0, 2, 0)
    assert found.calls[0].inputs[0].shape == (4,)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rank": 2}, "'rank' is 2; from 0 to 1 is allowed"),
        ({"world": 1 << 40}, "'world' is"),
        ({"rank": "0"}, "'rank' is a str where a whole number is allowed"),
        ({"taken": float("inf")}, "'taken' is no number that is a time"),
        ({"groups": [["0", "0", [0, 0], "gloo", ""]]}, "rank 0 twice"),
        ({"groups": [["0", "0", [0, -1], "gloo", ""]]}, "'ranks' is -1"),
        ({"groups": [["0"]]}, "'groups' has 1 parts; it needs 5"),
        ({"tensors": [["float32", [1] * 65, "cpu", []]]}, "'shape' has 65 parts"),
        ({"tensors": [["float32", [1 << 80], "cpu", []]]}, "'shape' is a huge number"),
        ({"sites": [[["x"], 3, "step", ""]]}, "'file' is a list where text is allowed"),
        ({"calls": [call_row(group=4)]}, "'group' is 4; from 0 to 0 is allowed"),
        ({"calls": [call_row(site=-1)]}, "'site' is -1"),
        ({"calls": [call_row(number=-1)]}, "'number' is -1"),
        ({"calls": [call_row(inputs=[9])]}, "'inputs' is 9"),
        ({"calls": [call_row(splits=[[]])]}, "'splits' has 1 parts"),
        ({"calls": [call_row(time=None)]}, "'time' is null"),
        ({"threads": [["m", True, [0], 5, "x", None]]}, "'call' is 5"),
    ],
)
def test_a_field_of_a_black_box_that_is_out_of_bounds(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    file = tmp_path / "rank_0.json"
    file.write_bytes(black_box(**changed))
    with pytest.raises(DumpError) as caught:
        read_dumps([file])
    assert said in str(caught.value)
    assert main(["explain", str(file)]) == 2


def test_text_in_a_dump_is_cut(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_bytes(
        black_box(groups=[["0", "n" * 10_000, [0, 1], "gloo", ""]])
    )
    (found,) = read_dumps([tmp_path]).dumps["black box"].values()
    assert len(found.groups["0"].name) == 1000


@pytest.mark.parametrize("ranks", [[0, 0], "[0, 0]", "[0, 99999999999999999999]", [-1, 0]])
def test_members_of_a_recorded_group_are_ranks(tmp_path: Path, ranks: Any) -> None:
    odd = dump([entry("barrier", 1)])
    odd["pg_config"]["0"]["ranks"] = ranks
    (tmp_path / "rank_0").write_bytes(pickle.dumps(odd))
    with pytest.raises(DumpError, match="no whole dump of the Flight Recorder"):
        read_dumps([tmp_path / "rank_0"])
