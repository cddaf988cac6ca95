"""What checks find besides calls that do not fit: on real Gloo processes as on threads.

Errors cost their processes, so these are the slow part; what only warns, and what is in order,
shares one pool.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.cli.main import main
from phalanx.model import Verdict
from tests.engines.processes import findings_programs as programs
from tests.support import assert_silent

RANKS = 4
GLOO: dict[str, Any] = {"ranks": RANKS, "backend": "gloo", "timeout": 30.0}

pytestmark = pytest.mark.filterwarnings(
    "ignore::phalanx.PhalanxWarning",
    "ignore:Running all_reduce on global rank",  # torch's own words for the same
)

QUICK = (
    programs.in_flight_written,
    programs.in_flight_changed_by_numpy,
    programs.unwaited_and_read,
    programs.groups_of_other_members,
    programs.group_not_made_by_a_member,
    programs.partial_deadlock,
    programs.invalid_list,
    programs.invalid_splits,
    programs.invalid_place,
)


@pytest.fixture(scope="module")
def processes() -> Iterator[phalanx.World]:
    with phalanx.World(engine="processes", **GLOO) as world:
        yield world


@pytest.fixture
def threads() -> Iterator[phalanx.World]:
    """A new one each time: on processes an error costs the ranks and their groups."""
    with phalanx.World(**GLOO) as world:
        yield world


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", ""))


def error_of(world: phalanx.World, fn: Any) -> phalanx.PhalanxError:
    with pytest.raises(phalanx.PhalanxError) as caught:
        world.run(fn)
    return caught.value


def findings_of(world: phalanx.World, fn: Any) -> list[Verdict]:
    before = len(world.findings)
    world.run(fn)
    return list(world.findings[before:])


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.slow, id=name_of(each))
        for each in programs.ERRORS
    ],
)
def test_an_error_is_that_of_threads(processes, threads, wrong) -> None:
    ours, theirs = error_of(processes, wrong), error_of(threads, wrong)
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("doubtful", programs.WARNINGS, ids=name_of)
def test_a_warning_is_that_of_threads(processes, threads, doubtful) -> None:
    ours, theirs = findings_of(processes, doubtful), findings_of(threads, doubtful)
    assert [(each.kind, each.ranks) for each in ours] == [
        (each.kind, each.ranks) for each in theirs
    ]
    assert len(ours) == 1
    assert ours[0].blocks[0].op.site == theirs[0].blocks[0].op.site  # type: ignore[attr-defined]


@pytest.mark.parametrize("correct", programs.SILENT, ids=name_of)
def test_what_is_in_order_stays_silent(processes, correct) -> None:
    assert_silent(correct, world=processes)


@pytest.mark.parametrize("hazard", programs.HAZARDS, ids=name_of)
def test_a_hazard_is_that_of_threads_under_the_profile(hazard) -> None:
    texts = []
    for engine in ("threads", "processes"):
        with phalanx.World(engine=engine, profile="nccl", **GLOO) as world:
            error = error_of(world, hazard)
            assert isinstance(error, phalanx.BackendHazardError)
            texts.append(str(error))
    assert texts[0] == texts[1]


def begin_a_world_that_one_rank_leaves() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() != 1:
        dist.destroy_process_group()


def begin_a_world_and_leave_it() -> None:
    dist.init_process_group("gloo")
    dist.barrier()


@pytest.mark.parametrize(
    ("world", "profile", "ranks"),
    [
        (begin_a_world_that_one_rank_leaves, None, [(1,)]),
        (begin_a_world_and_leave_it, None, []),
        (begin_a_world_and_leave_it, "nccl", [(0, 1)]),
    ],
    ids=["one rank leaves it", "all leave Gloo's", "all leave NCCL's"],
)
def test_a_world_that_the_program_leaves_standing(world, profile, ranks) -> None:
    for engine in ("threads", "processes"):
        with phalanx.World(ranks=2, engine=engine, init=False, profile=profile) as ours:
            found = findings_of(ours, world)
        assert [each.ranks for each in found] == ranks
        assert {each.kind for each in found} <= {"leak"}


def test_a_group_that_some_keep_is_told_only_where_the_program_goes_on() -> None:
    for engine in ("threads", "processes"):
        with phalanx.World(engine=engine, **GLOO) as world:
            assert findings_of(world, programs.groups_left_to_the_end_by_some) == []
            (found,) = findings_of(world, programs.group_that_one_member_keeps)
            assert (found.kind, found.severity, found.ranks) == ("mismatch", "warning", (3,))


@pytest.mark.slow
def test_what_the_root_alone_does_wrong_is_said_in_the_same_words(processes, threads) -> None:
    ours, theirs = (error_of(w, programs.invalid_scatter_list) for w in (processes, threads))
    assert isinstance(ours, phalanx.InvalidCallError)
    assert str(ours).splitlines()[0] == str(theirs).splitlines()[0]


def drop_receives() -> None:
    """Gloo gives up what nobody can wait for, and breaks off the connection."""
    for _ in range(3):
        if dist.get_rank() == 0:
            dist.isend(torch.ones(2), dst=1)
        elif dist.get_rank() == 1:
            work = dist.irecv(torch.empty(2), src=0)
            assert work is not None
            work.wait()
    if dist.get_rank() == 0:
        dist.destroy_process_group()


def test_dropped_works_are_told_where_the_backend_fails_of_them() -> None:
    with phalanx.World(engine="processes", **{**GLOO, "ranks": 2}) as world:
        with contextlib.suppress(phalanx.RankFailedError):  # on a slow machine it may pass
            world.run(drop_receives)
        assert [(each.kind, each.ranks) for each in world.findings] == [("unwaited-work", (0,))]


COUNTED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    for _ in range(3):
        dist.recv(torch.empty(1))
else:
    dist.send(torch.ones(1), dst=0)
dist.barrier()
"""


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_messages_to_receives_from_any_source_are_counted(engine, tmp_path, capsys) -> None:
    script = tmp_path / "counted.py"
    script.write_text(COUNTED)
    main(["run", "--no-record", "-n", "4", "--engine", engine, str(script)])
    assert "1 collective and 3 messages on 1 group checked" in capsys.readouterr().err


def test_kinds_that_are_left_out_are_not_found(tmp_path: Path) -> None:
    given = {**GLOO, "checks": "all,-unwaited-work,-in-flight-buffer"}
    with phalanx.World(engine="processes", **given) as world:
        assert findings_of(world, programs.unwaited_kept) == []
        assert findings_of(world, programs.in_flight_read) == []
        assert len(findings_of(world, programs.crossed_lines)) == 1
