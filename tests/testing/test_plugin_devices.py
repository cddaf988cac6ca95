"""`@pytest.mark.ranks(8, device="cuda")`: shared GPUs, and none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.pytest_runs import run_pytest

pytestmark = pytest.mark.timeout(180)

TESTS = """
import os
import pytest
import torch

@pytest.mark.ranks(4, device="cuda", checks="none")
def test_shared(rank, device):
    assert device == torch.device("cuda", rank) == torch.device("cuda", 0)
    assert torch.cuda.device_count() == 4

@pytest.mark.ranks(2, device="cpu")
def test_hidden(device):
    assert not torch.cuda.is_available()
    assert device == torch.device("cpu")

@pytest.mark.ranks(2, device="cuda", engine="processes")
def test_processes():
    raise AssertionError("never called")

@pytest.mark.ranks(2)
def test_as_it_is(device):
    assert device == torch.device("cpu")
    assert str(torch.device("cuda", 1)) == "cuda:1"
"""

ONE_GPU = """
import torch
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda index: None
"""


def test_a_machine_with_one_gpu(tmp_path: Path) -> None:
    files = {"test_gpu.py": TESTS, "conftest.py": ONE_GPU}
    ran = run_pytest(tmp_path, "-rA", files=files)
    assert ran.outcomes == {
        "test_shared[ranks=4]": "PASSED",
        "test_hidden[ranks=2]": "PASSED",
        "test_as_it_is[ranks=2]": "PASSED",
        "test_gpu.py:16": "SKIPPED",
    }, ran.text
    assert "let ranks share with engine='threads'" in ran.text


@pytest.mark.slow
def test_a_machine_without_one(tmp_path: Path) -> None:
    wrong = "import pytest\n@pytest.mark.ranks(2, device='gpu')\ndef test_it(): ...\n"
    files = {"test_gpu.py": TESTS, "test_wrong.py": wrong}
    ran = run_pytest(tmp_path, "-rA", "--continue-on-collection-errors", files=files)
    assert "2 passed, 2 skipped, 1 error" in ran.text
    assert "device='cuda': " in ran.text
    assert "device='gpu': choose one of 'cpu', 'cuda'" in ran.text
