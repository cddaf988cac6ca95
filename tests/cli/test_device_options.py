"""`--device` and `--gpus` of `phalanx run`, on machines with the GPUs that a test says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from phalanx.cli.main import main

SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
local_rank = int(os.environ["LOCAL_RANK"])
if torch.cuda.is_available():
    print("is", torch.device("cuda", local_rank), "of", torch.cuda.device_count())
else:
    print("sees", torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
if os.environ.get("FAIL"):
    raise ValueError("on purpose")
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    def have(number: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)

    return have


def said(out: str) -> dict[str, list[int]]:
    """What was printed, and by which ranks: on a busy machine one line may come in parts."""
    found: dict[str, list[int]] = {}
    for line in out.splitlines():
        ranks, text = line.removeprefix("[").split("]", 1)
        for part in ranks.split(", "):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            found.setdefault(text.strip(), []).extend(numbers)
    return {text: sorted(ranks) for text, ranks in found.items()}


def test_ranks_share_the_one_gpu_and_are_told_so(gpus, script, capsys) -> None:
    gpus(1)
    assert main(["run", "-n", "8", script]) == 0
    out, err = capsys.readouterr()
    assert said(out) == {"is cuda:0 of 8": list(range(8))}
    told = "phalanx: 8 ranks shared 1 GPU: cuda:1 to cuda:7 stood for cuda:0"
    assert err.splitlines()[0] == told
    assert torch.cuda.device_count() == 1
    assert type(torch.Generator()) is torch.Generator


def test_nothing_is_said_where_each_has_its_own(gpus, script, capsys) -> None:
    gpus(2)
    assert main(["run", "-n", "2", script]) == 0
    out, err = capsys.readouterr()
    assert said(out) == {"is cuda:0 of 2": [0], "is cuda:1 of 2": [1]}
    assert "shared" not in err


def test_fewer_than_there_are_on_two_nodes(gpus, script, capsys) -> None:
    gpus(4)
    options = ["-n", "3", "--nnodes", "2", "--device", "cuda", "--gpus", "2"]
    assert main(["run", *options, script]) == 0
    out, err = capsys.readouterr()
    assert said(out) == {"is cuda:0 of 3": [0, 2, 3, 5], "is cuda:1 of 3": [1, 4]}
    assert "6 ranks shared 2 GPUs: cuda:2 stood for cuda:0" in err


SPAWNING = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def main(rank, size):
    address = "tcp://127.0.0.1:29513"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    print("is", torch.device("cuda", rank), "of", torch.cuda.device_count())
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, args=(3,), nprocs=3)
"""


def test_ranks_that_a_script_starts_share_too(gpus, tmp_path, capsys) -> None:
    gpus(1)
    (tmp_path / "spawn.py").write_text(SPAWNING)
    assert main(["run", str(tmp_path / "spawn.py")]) == 0
    out, err = capsys.readouterr()
    assert said(out) == {"is cuda:0 of 3": [0, 1, 2]}
    assert "3 ranks shared 1 GPU: cuda:1 to cuda:2 stood for cuda:0" in err


def test_a_failed_run_says_so_too_and_how_to_repeat_it(
    gpus, script, capsys, monkeypatch
) -> None:
    gpus(2)
    monkeypatch.setenv("FAIL", "1")
    assert main(["run", "-n", "2", "--device", "cuda", "--gpus", "1", script]) == 1
    err = capsys.readouterr().err
    assert "2 ranks shared 1 GPU: cuda:1 stood for cuda:0" in err
    assert "phalanx run --ranks 2 --device cuda --gpus 1" in err


def test_quiet_says_nothing(gpus, script, capsys) -> None:
    gpus(1)
    assert main(["run", "-q", "-n", "2", script]) == 0
    assert capsys.readouterr() == ("", "")


def test_ranks_on_the_cpu_see_no_gpu(gpus, script, capsys) -> None:
    gpus(1)
    assert main(["run", "-n", "2", "--device", "cpu", script]) == 0
    assert said(capsys.readouterr().out) == {"sees 0 None": [0, 1]}


def test_processes_on_the_cpu_see_no_gpu(script, capfd) -> None:
    assert main(["run", "-n", "2", "--engine", "processes", "--device", "cpu", script]) == 0
    assert said(capfd.readouterr().out) == {"sees 0": [0, 1]}


@pytest.mark.slow
def test_ranks_of_torchs_launcher_on_the_cpu_see_no_gpu(script) -> None:
    command = [sys.executable, "-m", "phalanx", "run", "-n", "2", "--engine", "torchrun"]
    done = subprocess.run(
        [*command, "--device", "cpu", script], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, said(done.stdout)) == (0, {"sees 0": [0, 1]})


@pytest.mark.parametrize(
    ("there", "options", "text"),
    [
        (0, ["--device", "cuda"], "--device cuda: "),
        (0, ["--gpus", "1"], "--gpus 1: "),
        (1, ["--device", "gpu"], "choose one of 'auto', 'cpu', 'cuda'"),
        (1, ["--gpus", "two"], "--gpus two: a whole number is needed"),
        (1, ["--gpus", "-1"], "--gpus -1: give the number of GPUs that ranks share"),
        (1, ["--gpus", "0"], "--gpus 0: give the number of GPUs that ranks share"),
        (1, ["--gpus", "2"], "--gpus 2: there is 1 here; give a number from 1 to 1"),
        (1, ["--device", "cpu", "--gpus", "1"], "--gpus 1: --device cpu uses none"),
        (1, ["--device", "cuda", "--engine", "processes"], "let ranks share with --engine"),
        (1, ["--device", "cuda", "--engine", "torchrun"], "let ranks share with --engine"),
    ],
)
def test_what_is_refused_and_what_to_write(gpus, script, capsys, there, options, text) -> None:
    gpus(there)
    assert main(["run", "-n", "2", *options, script]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("phalanx: ")
    assert text in err
