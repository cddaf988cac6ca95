"""Keys that are set again, and a default group that a script makes again by `env://`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.cli.main import main
from tests.support import assert_silent


def findings(program: Any, seed: int) -> list[Any]:
    with phalanx.World(ranks=2, seed=seed) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return list(world.findings)


def a_barrier_key_used_again() -> None:
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    for _ in range(3):
        if dist.get_rank() == 0:
            store.set("ready", "1")
        else:
            store.wait(["ready"])


def a_command_in_one_key() -> None:
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    for step in range(3):
        if dist.get_rank() == 0:
            store.set("command", str(step))
        else:
            store.get("command")


def a_key_for_each_round() -> None:
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    for step in range(3):
        if dist.get_rank() == 0:
            store.set(f"ready {step}", "1")
        else:
            store.wait([f"ready {step}"])


def barriers_between() -> None:
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    for step in range(3):
        if dist.get_rank() == 0:
            store.set("command", str(step))
        dist.barrier()
        if dist.get_rank() == 1:
            assert store.get("command") == str(step).encode()
        dist.barrier()


def answered_by_another_key() -> None:
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    for step in range(3):
        if dist.get_rank() == 0:
            store.set(f"command {step}", str(step))
            store.get(f"answer {step}")
        else:
            store.get(f"command {step}")
            store.set(f"answer {step}", "1")


def progress_that_others_look_at() -> None:
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    if dist.get_rank() == 0:
        for step in range(5):
            store.set("progress", str(step))
    else:
        store.get("progress")
        store.get("progress")


def one_wait_for_what_is_set_often() -> None:
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    if dist.get_rank() == 0:
        for _ in range(3):
            store.set("alive", "1")
    else:
        store.wait(["alive"])


@pytest.mark.parametrize("program", [a_barrier_key_used_again, a_command_in_one_key])
def test_other_seeds_show_a_key_that_is_used_again(program) -> None:
    found = [each for seed in range(1, 9) for each in findings(program, seed)]
    assert len(found) >= 4 and {each.kind for each in found} == {"message-race"}
    assert {each.ranks for each in found} == {(0, 1)}
    assert all("sets it again" in each.headline for each in found)


ORDERED = [
    a_key_for_each_round,
    barriers_between,
    answered_by_another_key,
    progress_that_others_look_at,
    one_wait_for_what_is_set_often,
]


@pytest.mark.parametrize("program", ORDERED)
def test_keys_that_are_ordered_or_only_watched(program) -> None:
    assert_silent(program, seeds=range(9))


@pytest.fixture(scope="module")
def processes():
    with phalanx.World(ranks=2, engine="processes", backend="gloo") as world:
        yield world


@pytest.mark.programs
@pytest.mark.parametrize("program", [a_command_in_one_key])
def test_a_key_that_is_used_again_on_processes(program, processes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", phalanx.PhalanxWarning)
        processes.run(program)
    (found,) = processes.findings
    assert (found.kind, found.ranks) == ("message-race", (0, 1))
    assert "sets it again" in found.headline


def the_last_one_to_count_goes_on() -> None:
    """`add` orders whoever counted before whoever is told so by its answer."""
    store = dist.PrefixStore("count", dist.distributed_c10d._get_default_store())
    for step in range(20):
        if dist.get_rank() == 0:
            store.set("command", str(step))
        dist.barrier()
        if dist.get_rank() == 1:
            store.get("command")
        if store.add(f"done {step}", 1) == 2:
            store.set(f"next {step}", "1")
        store.wait([f"next {step}"])


@pytest.mark.programs
@pytest.mark.parametrize("program", [*ORDERED, the_last_one_to_count_goes_on])
def test_keys_that_are_ordered_or_only_watched_on_processes(program, processes) -> None:
    assert_silent(program, world=processes)  # once: keys of an earlier run are still there


AGAIN = """
import torch, torch.distributed as dist
for _ in range(2):
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
"""
OTHERS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("nccl")
dist.destroy_process_group()
"""

ELSEWHERE = """
import os, torch.distributed as dist
for port in range(29600, 29603):
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(source: str, *options: str) -> str:
        Path("program.py").write_text(source)
        assert main(["run", "--no-record", "-n", "2", *options, "program.py"]) == 0
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)
def test_a_default_group_made_again_finds_old_keys_on_torchrun(run, engine: str) -> None:
    text = run(AGAIN, "--engine", engine)
    assert text.startswith(
        "warning [message-race]: init_process_group at program.py:4 may hang on torchrun: it "
        "finds the keys of the group that the same line made before\n"
    )


def test_another_backend_has_other_keys(run) -> None:
    assert "nothing found" in run(OTHERS)


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)
def test_another_address_has_another_store(run, engine: str) -> None:
    assert "nothing found" in run(ELSEWHERE, "--engine", engine)


def test_functions_are_not_started_by_torchrun() -> None:
    def program() -> None:
        for _ in range(2):
            dist.destroy_process_group()
            dist.init_process_group("gloo")

    assert_silent(program)
