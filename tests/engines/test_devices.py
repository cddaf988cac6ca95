"""`device=` and `gpus=` of `run` and `World`, on machines with the GPUs that a test says."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.engines import rank_thread_pools


def have(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


def named() -> str:
    return str(torch.device("cuda", int(os.environ["LOCAL_RANK"])))


@pytest.fixture
def current(monkeypatch) -> list[tuple[int, Any]]:
    """What ranks have made their current device."""
    calls: list[tuple[int, Any]] = []
    set_device = lambda i: calls.append((int(os.environ["RANK"]), i))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    return calls


def test_a_gpu_for_each_rank_is_current(monkeypatch, current) -> None:
    have(monkeypatch, 1)
    assert phalanx.run(named, ranks=4, device="cuda") == ["cuda:0"] * 4
    assert current[:4] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_a_program_that_makes_its_group_chooses_its_device_too(monkeypatch, current) -> None:
    have(monkeypatch, 1)
    assert phalanx.run(named, ranks=2, device="cuda", init=False) == ["cuda:0"] * 2
    assert current == []


def test_fewer_gpus_than_there_are(monkeypatch, current) -> None:
    have(monkeypatch, 4)
    with phalanx.World(ranks=4, device="cuda", gpus=2) as world:
        assert world.run(named) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
        assert world.run(torch.cuda.device_count) == [4] * 4


def test_nothing_is_mapped_unless_asked_for(monkeypatch) -> None:
    have(monkeypatch, 1)
    assert phalanx.run(named, ranks=2) == ["cuda:0", "cuda:1"]


def test_ranks_on_the_cpu_see_no_gpu(monkeypatch) -> None:
    have(monkeypatch, 1)

    def body() -> tuple[bool, str]:
        return torch.cuda.is_available(), dist.get_backend()

    assert phalanx.run(body, ranks=2, device="cpu") == [(False, "gloo")] * 2


def hidden() -> tuple[str | None, bool]:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.is_available()


@pytest.mark.programs
def test_processes_on_the_cpu_see_no_gpu() -> None:
    found = phalanx.run(hidden, ranks=2, engine="processes", device="cpu")
    assert found == [("", False)] * 2


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_gpu_that_is_not_there_is_refused_at_once(monkeypatch, engine) -> None:
    have(monkeypatch, 0)
    with pytest.raises(phalanx.UsageError, match=r"device='cuda': .*use device='cpu'"):
        phalanx.World(ranks=2, device="cuda", engine=engine)


def test_values_that_mean_nothing() -> None:
    with pytest.raises(phalanx.UsageError, match="device='cuda:1': choose one of"):
        phalanx.run(named, ranks=2, device="cuda:1")
    with pytest.raises(phalanx.UsageError, match="gpus=0: give the number of GPUs"):
        phalanx.run(named, ranks=2, device="cuda", gpus=0)


def test_a_replay_says_which_devices(monkeypatch, current) -> None:
    have(monkeypatch, 2)

    def fails() -> None:
        raise ValueError("on purpose")

    with pytest.raises(phalanx.RankFailedError) as error:
        phalanx.run(fails, ranks=3, device="cuda", gpus=1)
    assert "phalanx.run(fails, ranks=3, device='cuda', gpus=1)" in str(error.value)


def test_a_rank_that_names_a_gpu_which_is_not_there_is_told_of_sharing(monkeypatch) -> None:
    have(monkeypatch, 1)

    def uses_its_own() -> None:
        raise RuntimeError("CUDA error: invalid device ordinal\nCUDA kernel errors might be...")

    with pytest.raises(phalanx.RankFailedError) as error:
        phalanx.run(uses_its_own, ranks=3)
    assert "hint      3 ranks and 1 GPU: device='cuda' lets ranks share" in str(error.value)
    have(monkeypatch, 3)
    with pytest.raises(phalanx.RankFailedError) as error:
        phalanx.run(uses_its_own, ranks=3)
    assert "hint" not in str(error.value)


def test_a_kept_thread_with_another_gpu_or_stream_is_not_used_again(monkeypatch) -> None:
    now = {"device": 0, "stream": 0}
    stream = type("Stream", (), {"cuda_stream": property(lambda self: now["stream"])})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now["device"])
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    before = rank_thread_pools._state_of_thread()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert rank_thread_pools._state_of_thread() == before
    for name in now:
        now[name] = 1
        assert rank_thread_pools._state_of_thread() != before
        now[name] = 0
