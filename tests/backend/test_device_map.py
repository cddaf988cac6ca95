"""Which GPU an index means, and what is refused: values only, no device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from phalanx.backend.devices import device_map
from phalanx.backend.devices.device_map import (
    HIDDEN,
    DeviceMap,
    plan_devices,
    render_sharing,
    visible_to_processes,
)
from phalanx.errors import UsageError


def have(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_an_index_means_one_that_is_there(gpus: int) -> None:
    ranks = DeviceMap(gpus=gpus, shown=8)
    assert [ranks.index(i) for i in range(8)] == [i % gpus for i in range(8)]
    assert all(ranks.index(ranks.index(i)) == ranks.index(i) for i in range(8))


def test_an_index_that_no_rank_has_is_left_to_torch() -> None:
    ranks = DeviceMap(gpus=1, shown=4)
    assert (ranks.index(4), ranks.index(-1)) == (4, -1)
    assert not ranks.used


def test_it_is_known_whether_an_index_meant_another() -> None:
    ranks = DeviceMap(gpus=2, shown=4)
    ranks.place("cuda:1")
    assert not ranks.used
    ranks.place("cuda:3")
    assert ranks.used


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("cuda:3", "cuda:0"),
        ("cuda:0", "cuda:0"),
        ("cuda", "cuda"),
        ("cuda:9", "cuda:9"),
        ("cuda:x", "cuda:x"),
        ("cpu:3", "cpu:3"),
        (3, 0),
        (True, True),
        (None, None),
        (torch.float32, torch.float32),
        (torch.device("cuda", 3), torch.device("cuda", 0)),
        (torch.device("cuda"), torch.device("cuda")),
        (torch.device("cpu"), torch.device("cpu")),
        (torch.device("meta", 3), torch.device("meta", 3)),
    ],
)
def test_a_device_argument(given: Any, meant: Any) -> None:
    found = DeviceMap(gpus=1, shown=8).place(given)
    assert found == meant
    assert type(found) is type(meant)


@pytest.mark.parametrize(
    ("gpus_there", "device", "gpus", "per_node", "plan"),
    [
        (0, None, None, 8, None),
        (0, "auto", None, 8, None),
        (0, "cpu", None, 8, HIDDEN),
        (2, "cpu", None, 8, HIDDEN),
        (1, None, None, 8, None),
        (1, "auto", None, 8, DeviceMap(1, 8)),
        (1, "cuda", None, 8, DeviceMap(1, 8)),
        (1, "cuda", None, 1, None),
        (4, "cuda", None, 4, None),
        (4, "auto", None, 6, DeviceMap(4, 6)),
        (4, "cuda", 1, 4, DeviceMap(1, 4)),
        (4, "auto", 2, 2, DeviceMap(2, 2)),
        (4, None, 3, 2, DeviceMap(3, 3)),
    ],
)
def test_what_ranks_see(monkeypatch, gpus_there, device, gpus, per_node, plan) -> None:
    have(monkeypatch, gpus_there)
    assert plan_devices(device, gpus, per_node=per_node) == plan


def test_only_what_is_shared_needs_a_mode() -> None:
    assert DeviceMap(1, 2).is_needed
    assert not DeviceMap(2, 2).is_needed
    assert not HIDDEN.is_needed


@pytest.mark.parametrize(("device", "gpus"), [("cuda", None), ("auto", 1), (None, 1)])
def test_a_gpu_that_is_not_there(monkeypatch, device, gpus) -> None:
    have(monkeypatch, 0)
    with pytest.raises(UsageError, match="leave it out, or use device='cpu'") as error:
        plan_devices(device, gpus, per_node=2)
    assert str(error.value).startswith("device='cuda': " if device == "cuda" else "gpus=1: ")


def test_an_empty_list_of_visible_gpus_is_named(monkeypatch) -> None:
    have(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES is empty"):
        plan_devices("cuda", None, per_node=2)


def test_more_gpus_than_there_are(monkeypatch) -> None:
    have(monkeypatch, 2)
    with pytest.raises(UsageError, match="gpus=3: there are 2 here; give a number from 1 to 2"):
        plan_devices("cuda", 3, per_node=4)


def test_the_driver_is_asked_once(monkeypatch) -> None:
    asked: list[int] = []

    def device_count() -> int:
        asked.append(1)
        return 2

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", device_count)
    assert [device_map.count_gpus() for _ in range(3)] == [2, 2, 2]
    assert len(asked) == 1


def test_one_line_says_who_shares_what() -> None:
    assert render_sharing(DeviceMap(1, 2), 4) == "4 ranks shared 1 GPU: cuda:1 stood for cuda:0"
    assert render_sharing(DeviceMap(2, 8), 8) == (
        "8 ranks shared 2 GPUs: cuda:2 stood for cuda:0, cuda:3 for cuda:1, "
        "cuda:4 for cuda:0, cuda:5 for cuda:1, and so on"
    )


@pytest.mark.parametrize(
    ("gpus_there", "visible", "device", "gpus", "per_node", "seen"),
    [
        (0, None, None, None, 4, {}),
        (0, None, "auto", None, 4, {}),
        (0, None, "cpu", None, 4, {"CUDA_VISIBLE_DEVICES": ""}),
        (4, None, "cpu", None, 4, {"CUDA_VISIBLE_DEVICES": ""}),
        (4, None, "cuda", None, 4, {}),
        (1, None, "auto", None, 4, {}),
        (4, None, "cuda", 2, 2, {"CUDA_VISIBLE_DEVICES": "0,1"}),
        (3, "7,5,2", "cuda", 2, 2, {"CUDA_VISIBLE_DEVICES": "7,5"}),
    ],
)
def test_what_processes_see(
    monkeypatch, gpus_there, visible, device, gpus, per_node, seen
) -> None:
    have(monkeypatch, gpus_there)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_to_processes(device, gpus, per_node=per_node) == seen


def test_processes_do_not_share_a_gpu(monkeypatch) -> None:
    have(monkeypatch, 1)
    with pytest.raises(UsageError) as error:
        visible_to_processes("cuda", None, per_node=8)
    assert str(error.value) == (
        "device='cuda': 8 ranks on 1 GPU: a process needs one of its own, because NCCL refuses "
        "two ranks on one; let ranks share with engine='threads', or take ranks=1"
    )
