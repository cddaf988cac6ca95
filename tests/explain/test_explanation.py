"""What `explain` says of dumps: hand-written ones, as NCCL and Gloo leave them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.cli.main import main
from phalanx.explain.dump_files import read_dumps
from phalanx.explain.explanation import Explanation, explain
from phalanx.explain.explanation_text import as_data, render_explanation
from phalanx.journal.recording.recorder import FORMAT
from phalanx.model import Deadlock, Finding, Mismatch, Stall
from tests.explain.dumps import dump, entry, write


def answer(folder: Path) -> Explanation:
    return explain(read_dumps([folder]))


def sites_of(verdict: Any) -> set[int]:
    found = set()
    for block in verdict.blocks:
        op = block.op if hasattr(block, "op") else (block.view.wait and block.view.wait.op)
        if op is not None and op.site is not None:
            found.add(op.site.line)
    return found


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_nothing_is_wrong_where_all_calls_met(tmp_path: Path, form: str) -> None:
    calls = [entry("all_reduce", 1), entry("broadcast", 2), entry("barrier", 3)]
    found = answer(write(tmp_path, dump(calls), dump(calls), form=form))
    assert not found.found
    assert "nothing wrong found" in render_explanation(found)


@pytest.mark.parametrize("backend", ["nccl", "gloo", "xccl"])
def test_another_operation(tmp_path: Path, backend: str) -> None:
    dumps = [
        dump(
            [
                entry("all_reduce", 1, backend=backend),
                entry("barrier" if rank == 2 else "broadcast", 2, backend=backend, done=False),
            ],
            ranks=3,
        )
        for rank in range(3)
    ]
    (verdict,) = answer(write(tmp_path, *dumps)).verdicts
    assert isinstance(verdict, Mismatch)
    assert verdict.ranks == (2,)
    assert verdict.differs == ("operation",)
    assert verdict.number == 1
    assert sites_of(verdict) == {20, 30}


@pytest.mark.parametrize(
    ("odd", "differs"),
    [({"sizes": ((5,),)}, "shape"), ({"dtype": "Double"}, "dtype")],
)
def test_another_shape_or_dtype(tmp_path: Path, odd: dict[str, Any], differs: str) -> None:
    plain = dump([entry("all_reduce", 1, done=False)], ranks=3)
    other = dump([entry("all_reduce", 1, done=False, **odd)], ranks=3)
    (verdict,) = answer(write(tmp_path, plain, other, plain)).verdicts
    assert isinstance(verdict, Mismatch)
    assert verdict.ranks == (1,)
    assert verdict.differs == (differs,)


def test_a_rank_that_never_entered(tmp_path: Path) -> None:
    here = dump([entry("all_reduce", 1), entry("all_reduce", 2, done=False)], ranks=3)
    away = dump([entry("all_reduce", 1)], ranks=3)
    found = answer(write(tmp_path, here, here, away))
    (verdict,) = found.verdicts
    assert isinstance(verdict, Stall)
    assert verdict.ranks == (2,)
    assert any("rank 2 last called all_reduce #0" in text for _, text in found.facts)


def test_a_rank_without_a_dump(tmp_path: Path) -> None:
    here = dump([entry("all_reduce", 1, done=False)], ranks=8)
    found = answer(write(tmp_path, *[here] * 7, None))
    (verdict,) = found.verdicts
    assert verdict.ranks == (7,)
    assert found.unknown[0].startswith("rank 7 left no dump")
    assert "rank 7 left no dump" in render_explanation(found)


def test_two_groups_in_another_order(tmp_path: Path) -> None:
    def one(first: str, second: str) -> Any:
        calls = [entry("all_reduce", 1, group=first, done=False, line=10 + int(first))]
        calls.append(entry("all_reduce", 1, group=second, done=False, record=1, line=30))
        return dump(calls[:1], g1=[0, 1], g2=[0, 1])

    (verdict,) = answer(write(tmp_path, one("1", "2"), one("2", "1"))).verdicts
    assert isinstance(verdict, Deadlock)
    assert verdict.cause == "cycle"
    assert verdict.cycle == (0, 1)
    assert sites_of(verdict) == {11, 12}


def test_a_send_without_a_receive(tmp_path: Path) -> None:
    sends = dump([entry("send 0->1", 1, done=False)])
    waits = dump([entry("recv 1<-0", 1), entry("recv 1<-0", 2, done=False)])
    assert answer(write(tmp_path / "a", sends, dump([]))).verdicts[0].ranks == (1,)
    sent = dump([entry("send 0->1", 1)])
    (verdict,) = answer(write(tmp_path / "b", sent, waits)).verdicts
    assert verdict.ranks == (0,)
    assert "recv(src=0" in render_explanation(answer(tmp_path / "b"))


def test_two_receives_wait_for_each_other(tmp_path: Path) -> None:
    first = dump([entry("recv 0<-1", 1, done=False), entry("send 0->1", 2, done=False)])
    second = dump([entry("recv 1<-0", 1, done=False)])
    first["entries"].pop()
    (verdict,) = answer(write(tmp_path, first, second)).verdicts
    assert isinstance(verdict, Deadlock)
    assert verdict.cycle == (0, 1)


def test_rings_that_begin_at_different_points(tmp_path: Path) -> None:
    def ring(first: int, last: int) -> Any:
        calls = [
            entry("all_reduce", n, sizes=((n,),), done=n < last, record=n - 1)
            for n in range(first, last + 1)
        ]
        return dump(calls, ranks=3)

    found = answer(write(tmp_path, ring(1, 30), ring(11, 30), ring(21, 29)))
    (verdict,) = found.verdicts
    assert verdict.ranks == (2,)
    assert any("the ring was full" in text for text in found.unknown)


def test_desynchronised_counts(tmp_path: Path) -> None:
    """One rank is a call ahead: the numbers tell, though the operations are the same."""
    ahead = dump([entry("all_reduce", n, sizes=((n,),), done=n < 3) for n in (1, 2, 3)])
    behind = dump([entry("all_reduce", n, sizes=((n,),), done=n < 2) for n in (1, 2)])
    (verdict,) = answer(write(tmp_path, ahead, behind)).verdicts
    assert isinstance(verdict, (Stall, Deadlock))
    assert "call #2" in render_explanation(answer(tmp_path))


def test_gloo_says_reduce_scatter_by_another_name(tmp_path: Path) -> None:
    def one(function: str) -> Any:
        call = entry("all_reduce", 1, backend="gloo", done=False)
        call["frames"][0]["name"] = function
        given = dump([call])
        given["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return given

    same = answer(
        write(tmp_path / "same", one("reduce_scatter_single"), one("reduce_scatter_tensor"))
    )
    assert not same.verdicts
    (verdict,) = answer(
        write(tmp_path / "other", one("all_reduce"), one("reduce_scatter"))
    ).verdicts
    assert isinstance(verdict, Mismatch)


def test_uneven_all_to_all_is_not_blamed(tmp_path: Path) -> None:
    dumps = [dump([entry("all_to_all", 1, sizes=((3 + rank,),))]) for rank in range(2)]
    assert not answer(write(tmp_path, *dumps)).found


def test_a_batch_of_messages_with_its_summary(tmp_path: Path) -> None:
    def one(me: int) -> Any:
        other = 1 - me
        calls = [
            entry(f"send {me}->{other}", 1, record=0, batch=1),
            entry(f"recv {me}<-{other}", 2, record=1, batch=1),
            entry("coalesced", 1, record=2),
        ]
        return dump(calls)

    assert not answer(write(tmp_path, one(0), one(1))).found


def test_collectives_launched_at_once_count_as_one(tmp_path: Path) -> None:
    calls = [entry("all_reduce", 1, record=n) for n in range(3)]
    calls += [entry("coalesced", 1, record=3), entry("barrier", 2, record=4)]
    assert not answer(write(tmp_path, dump(calls), dump(calls))).found


def test_dumps_without_frames(tmp_path: Path) -> None:
    calls = [entry("all_reduce", 1, done=False)]
    del calls[0]["frames"]
    found = answer(write(tmp_path, dump(calls), dump([])))
    assert found.verdicts[0].ranks == (1,)
    assert any("no lines of the program" in text for text in found.unknown)


def test_stacks_of_py_spy_beside_dumps(tmp_path: Path) -> None:
    here = dump([entry("all_reduce", 1, done=False)])
    write(tmp_path, here, dump([]))
    (tmp_path / "pyspy_1.txt").write_text(
        "Process 77: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
        'Thread 77 (active): "MainThread"\n'
        "    crunch (/job/data.py:7)\n    <module> (/job/train.py:99)\n"
        'Thread 80 (idle): "worker"\n    wait (threading.py:320)\n'
    )
    found = answer(tmp_path)
    text = render_explanation(found)
    assert "data.py:7 in crunch" in text
    assert "rank 1 is computing at job/data.py:7" in text


def test_a_recording_brings_its_own_verdict(tmp_path: Path) -> None:
    lines = [
        {"format": FORMAT, "version": 1, "started": 0.0, "clock": "real", "ranks": 2},
        {
            "end": {
                "status": "failed",
                "text": "ranks 0 and 1 wait",
                "verdicts": [{"kind": "x"}],
            }
        },
    ]
    (tmp_path / "run.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = answer(tmp_path)
    assert found.told == ("ranks 0 and 1 wait",)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hung = write(
        tmp_path / "hung",
        dump([entry("all_reduce", 1, done=False)]),
        dump([entry("barrier", 1)]),
    )
    fine = write(tmp_path / "fine", dump([entry("barrier", 1)]), dump([entry("barrier", 1)]))
    assert main(["explain", str(fine)]) == 0
    assert main(["explain", str(hung)]) == 1
    assert "[mismatch]" in capsys.readouterr().out
    assert main(["explain", "--json", str(hung)]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdicts"][0]["type"] == "Mismatch"
    assert data == json.loads(json.dumps(as_data(answer(hung))))
    assert main(["explain", str(tmp_path / "nowhere")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_it_needs_no_torch(tmp_path: Path) -> None:
    folder = write(tmp_path, dump([entry("barrier", 1)]), dump([entry("barrier", 1)]))
    code = (
        "import sys\nfrom phalanx.cli.main import main\n"
        f"status = main(['explain', {str(folder)!r}])\n"
        "assert 'torch' not in sys.modules\nsys.exit(status)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert phalanx.__name__ == "phalanx"


def test_findings_have_kinds(tmp_path: Path) -> None:
    """Every answer is a verdict of the model, whose text is that of a run."""
    hung = write(tmp_path, dump([entry("all_reduce", 1, done=False)]), dump([]))
    for verdict in answer(hung).verdicts:
        assert isinstance(verdict, (Mismatch, Deadlock, Stall, Finding))


# -- ranks that are missing, and files that cannot be read ----------------------------------


def standing(operation: str, *, ranks: int = 3) -> Any:
    return dump([entry("all_reduce", 1), entry(operation, 2, done=False)], ranks=ranks)


def test_a_mismatch_among_those_that_left_dumps(tmp_path: Path) -> None:
    """Two of three disagree; with the third one missing, nobody knows which of them is odd."""
    whole = answer(write(tmp_path / "all", *map(standing, ["broadcast"] * 2 + ["barrier"])))
    assert whole.verdicts[0].ranks == (2,)
    found = answer(write(tmp_path / "some", None, standing("broadcast"), standing("barrier")))
    (verdict,) = found.verdicts
    assert isinstance(verdict, Mismatch)
    assert verdict.ranks == ()
    text = " ".join(render_explanation(found).split())
    assert "rank 1 called broadcast where rank 2 called barrier" in text
    assert "rank 0 left no dump: what it did is not known" in text
    assert "which side is at fault: rank 0 may have called either" in text
    assert "has not arrived" not in text


@pytest.mark.parametrize("broken", ["cut", "empty", "too new"])
def test_a_file_that_cannot_be_read_is_no_missing_file(tmp_path: Path, broken: str) -> None:
    """One thing is said of its rank."""
    here = standing("barrier")
    write(tmp_path, here, here, here)
    file = tmp_path / "nccl_trace_rank_2"
    data = file.read_bytes()
    new = pickle.dumps({**here, "version": "3.0"})
    file.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "too new": new}[broken])
    found = answer(tmp_path)
    assert found.verdicts[0].ranks == (2,)
    text = " ".join(render_explanation(found).split())
    assert "left no dump" not in text
    assert text.count(str(file)) == 1
    assert text.count("what rank 2 did is not known") == 1


def test_a_damaged_file_tells_how_many_ranks_there_were(tmp_path: Path) -> None:
    """On Gloo nothing else does; a file of another name does not count."""
    dumps = [
        {**dump([entry("barrier", 1, backend="gloo", done=False)]), "pg_config": {}}
        for _ in range(3)
    ]
    write(tmp_path, *dumps)
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"\x80\x02}")
    (tmp_path / "notes_7.txt").write_text("hello")
    found = answer(tmp_path)
    assert found.ranks == 3
    assert found.verdicts[0].ranks == (2,)


def test_gloo_lists_the_ranks_without_a_name(tmp_path: Path) -> None:
    given = dump([entry("barrier", 1, backend="gloo", done=False)])
    given["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
    found = answer(write(tmp_path, given, given))
    assert found.ranks == 3
    assert found.verdicts[0].ranks == (2,)


def test_members_of_a_group_that_gloo_does_not_tell(tmp_path: Path) -> None:
    def one(group: str) -> Any:
        given = dump([entry("all_reduce", 1, group=group, backend="gloo", done=False)])
        return {**given, "pg_config": {}}

    found = answer(write(tmp_path, one("1"), one("2"), one("0")))
    text = " ".join(render_explanation(found).split())
    assert '"group 1: mesh_1" (members unknown), call #0' in text
    assert "needs members of its group; who these are is unknown" in text
    assert "needs ranks 0, 1, which wait too" in text  # of the world


def test_a_deadlock_that_rests_on_the_number_of_ranks_says_so(tmp_path: Path) -> None:
    def one(group: str) -> Any:
        given = dump([entry("all_reduce", 1, group=group, backend="gloo", done=False)])
        return {**given, "pg_config": {}}

    found = answer(write(tmp_path, one("1"), one("2")))
    (verdict,) = found.verdicts
    assert isinstance(verdict, Stall)
    assert verdict.ranks == (0, 1)
    text = " ".join(render_explanation(found).split())
    assert "proved if these were all ranks, which the dumps do not tell" in text
    assert "ranks 0 and 1 wait for each other; no rank can continue" in text
    told = dump([], ranks=2)["pg_config"]
    write(tmp_path, {**one("1"), "pg_config": told}, {**one("2"), "pg_config": told})
    assert isinstance(answer(tmp_path).verdicts[0], Deadlock)


def test_equal_lines_about_files_are_one(tmp_path: Path) -> None:
    fine = dump([entry("barrier", 1)])
    write(tmp_path, fine, fine)
    for number in range(20):
        (tmp_path / f"notes{chr(97 + number)}.txt").write_text("hello")
    found = answer(tmp_path)
    text = " ".join(render_explanation(found).split())
    assert text.count("text of another kind") == 1
    assert "and 17 more files: text of another kind" in text
    assert len(as_data(found)["unknown"]) == 20


def test_a_group_that_is_made_again_in_full_rings(tmp_path: Path) -> None:
    """Nobody knows which of its calls belong together."""
    names = ["barrier", "all_reduce", "broadcast", "all_reduce"]
    calls = [
        entry(name, 1 + at % 2, record=7 + at, done=at < 3) for at, name in enumerate(names)
    ]
    found = answer(write(tmp_path, dump(calls), dump(calls[2:])))
    assert not found.found
    assert any("a group was made again" in text for text in found.unknown)
