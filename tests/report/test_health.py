"""`phalanx doctor` with facts that are made up: what it finds wrong, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from phalanx.report.health import (
    NOTE,
    WRONG,
    Health,
    Limits,
    ReplacedName,
    TorchFacts,
    as_data,
    files_needed,
    find_hints,
)
from phalanx.report.health_text import render_health
from phalanx.report.layout import WIDTH

PATCHES = (
    ReplacedName(
        "time", "sleep", "threads", "a rank that sleeps lets others run", "put back as it was"
    ),
    ReplacedName(
        "os", "stat", "threads", "a rank that polls lets others run", "put back as it was"
    ),
    ReplacedName(
        "os", "access", "threads", "a rank that polls lets others run", "put back as it was"
    ),
    ReplacedName("pdb", "set_trace", "processes", "the debugger asks the terminal", "stays"),
)
SOUND = Health(
    versions={
        "phalanx": "0.1.0",
        "Python": "3.12.3",
        "torch": "2.13.0+cpu",
        "cloudpickle": "3.1.2",
        "hypothesis": None,
    },
    python=(3, 12, 3),
    system="Linux-6.1, CPython",
    libraries={"accelerate": "1.15.0", "deepspeed": None, "torchtitan": None},
    torch=TorchFacts(
        cuda=None,
        backends={"gloo": True, "nccl": False, "mpi": False},
        own_folder=True,
    ),
    limits=Limits(
        cores=4,
        threads=30_000,
        threads_used=200,
        open_files=1024,
        most_open_files=1_048_576,
        shared_memory=8 << 30,
        shared_memory_free=7 << 30,
        ports=(32768, 60999),
    ),
    environment={"TORCH_LOGS": "dynamo"},
    modes={"threads": "while a world on threads is open", "processes": "in rank processes"},
    patches=PATCHES,
    ranks=8,
)

TEXT = """\
phalanx doctor: nothing is wrong

versions
  phalanx         0.1.0
  Python          3.12.3
  torch           2.13.0+cpu
  cloudpickle     3.1.2
  not installed   hypothesis
  system          Linux-6.1, CPython

libraries that Phalanx knows
  accelerate      1.15.0
  not installed   deepspeed, torchtitan

torch
  backends        gloo (not compiled in: nccl, mpi)
  CUDA            not compiled in
  GPUs            none

limits (for 8 ranks)
  cores           4
  threads         30000, of which 200 are there
  open files      1024 (ulimit -n may raise it to 1048576)
  shared memory   8192 MiB in /dev/shm, 7168 MiB free
  ports           32768-60999; ok

environment
  TORCH_LOGS      dynamo

4 names of torch, Python and pytest are replaced at times; --patches says which and why
     3  while a world on threads is open
     1  in rank processes
"""

ALL_PATCHES = """\
4 names of torch, Python and pytest are replaced at times

while a world on threads is open (3)
  a rank that sleeps lets others run
      time.sleep
  a rank that polls lets others run
      os.stat, os.access

in rank processes (1)
  the debugger asks the terminal
  (stays)
      pdb.set_trace
"""


def test_a_sound_machine() -> None:
    assert find_hints(SOUND) == []
    assert render_health(SOUND, []) == TEXT


def test_all_patches() -> None:
    text = render_health(SOUND, [], patches=True)
    assert text.endswith("\n\n" + ALL_PATCHES)


def test_what_is_wrong_comes_first_and_says_what_to_do() -> None:
    limits = replace(SOUND.limits, open_files=64, most_open_files=4000, shared_memory=64 << 20)
    health = replace(SOUND, limits=limits)
    text = render_health(health, find_hints(health))
    assert text.startswith(
        "phalanx doctor: 1 thing is wrong, 1 note\n"
        "\n"
        "  wrong  64 open files are allowed: 8 ranks on processes need about 116\n"
        "         -> ulimit -n 4000\n"
        "  note   /dev/shm has 64 MiB: the workers of torch's data loaders send tensors "
        "through\n"
        "         it, and die with a bus error when it is full\n"
        "         -> docker run --shm-size=2g, or num_workers=0\n"
        "\n"
        "versions\n"
    )


def with_torch(**changes: Any) -> Health:
    return replace(SOUND, torch=replace(SOUND.torch, **changes))


def with_version(name: str, version: str | None) -> Health:
    return replace(SOUND, versions={**SOUND.versions, name: version})


def with_limits(**changes: Any) -> Health:
    return replace(SOUND, limits=replace(SOUND.limits, **changes))


UNSOUND = {
    "python": (
        replace(SOUND, python=(3, 9, 1)),
        WRONG,
        "Python 3.9.1: Phalanx needs Python 3.10",
    ),
    "frames": (replace(SOUND, python=(3, 11, 8)), NOTE, "gh-106883"),
    "no torch": (with_version("torch", None), WRONG, "torch is not installed"),
    "old torch": (with_version("torch", "2.10.1"), WRONG, "Phalanx knows torch 2.11 to 2.14"),
    "new torch": (with_version("torch", "2.15.0a0"), WRONG, "Phalanx knows torch 2.11 to 2.14"),
    "compile": (with_version("torch", "2.11.0+cu128"), NOTE, "torch.compile makes"),
    "broken torch": (
        with_torch(error="libtorch.so: no such file"),
        WRONG,
        "libtorch.so: no such",
    ),
    "no gloo": (with_torch(backends={"gloo": False}), WRONG, "built without Gloo"),
    "folder": (with_torch(own_folder=False), NOTE, "current folders of their own"),
    "no nccl": (with_torch(gpus=("H200",) * 8), NOTE, "built without NCCL"),
    "gpus": (
        with_torch(gpus=("H200",), backends={"gloo": True, "nccl": True}),
        NOTE,
        "8 ranks are more than there are GPUs (1 GPU)",
    ),
    "cloudpickle": (with_version("cloudpickle", None), WRONG, "cloudpickle is not installed"),
    "files": (with_limits(open_files=100), WRONG, "100 open files are allowed"),
    "threads": (
        with_limits(threads=250),
        WRONG,
        "250 threads are allowed and 200 are there: 8 ranks on processes need about 96",
    ),
    "memory": (with_limits(shared_memory=64 << 20), NOTE, "/dev/shm has 64 MiB"),
    "ports": (with_limits(port_error="permission denied"), WRONG, "no port can be opened"),
    "name": (
        with_limits(name_error="box: unknown"),
        NOTE,
        "leads to no address (box: unknown)",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_each_fault_is_found_alone(name: str) -> None:
    health, level, text = UNSOUND[name]
    [hint] = find_hints(health)
    assert hint.level == level
    assert text in hint.what
    shown = render_health(health, [hint], patches=True)
    assert all(len(line) <= WIDTH for line in shown.splitlines())
    assert shown.isascii()


def test_a_hard_limit_that_is_too_low_leads_to_something_else() -> None:
    [hint] = find_hints(with_limits(open_files=64, most_open_files=64))
    assert hint.remedy.startswith("fewer ranks, --engine threads, or a higher hard limit")


def test_limits_are_judged_for_the_ranks_that_are_asked_for() -> None:
    assert find_hints(replace(SOUND, ranks=150)) == []
    [hint] = find_hints(replace(SOUND, ranks=300))
    assert hint.what.endswith(f"300 ranks on processes need about {files_needed(300)}")


def test_no_limit_is_no_problem() -> None:
    health = with_limits(
        open_files=None, most_open_files=None, threads=None, shared_memory=None
    )
    assert find_hints(health) == []
    assert "open files      no limit\n" in render_health(health, [])


def test_the_data_has_everything() -> None:
    health = with_limits(open_files=10)
    data = json.loads(json.dumps(as_data(health, find_hints(health))))
    assert data["wrong"] == 1
    assert data["hints"][0]["level"] == "wrong"
    assert data["versions"]["torch"] == "2.13.0+cpu"
    assert data["limits"]["open_files"] == 10
    assert data["patches"][0]["why"] == "a rank that sleeps lets others run"
    assert data["modes"]["threads"] == "while a world on threads is open"
