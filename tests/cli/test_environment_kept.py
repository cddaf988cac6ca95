"""Nothing of the environment comes into what is shown or recorded."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from phalanx.cli.main import main

FAILS = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
assert os.environ["MY_TOKEN"]
rank, how = dist.get_rank(), sys.argv[1]
environ = dict(os.environ)
if how == "mismatch":
    dist.all_reduce(torch.ones(2 + rank))
if how == "deadlock" and rank == 0:
    dist.barrier()
if how == "raises" and rank:
    raise ValueError("no data")
if how == "leaves" and rank:
    sys.exit(3)
dist.barrier()
"""


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("how", ["mismatch", "deadlock", "raises", "leaves"])
def test_no_value_of_a_variable_is_told(
    tmp_path: Path, engine, how, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_TOKEN", "s3cr3t")
    Path("fails.py").write_text(FAILS)
    line = ["-n", "2", "--engine", engine, "--record", "run.gz", "fails.py", how]
    assert main(["run", *line]) in (1, 3)
    assert main(["report", "run.gz", "--html", "run.html", "--trace", "run.json"]) == 0
    assert main(["report", "run.gz"]) == 0
    told = capfd.readouterr()
    recorded = gzip.decompress(Path("run.gz").read_bytes())
    assert b"fails.py" in recorded
    everything = told.out + told.err + recorded.decode() + Path("run.json").read_text()
    assert "s3cr3t" not in everything and "MY_TOKEN" not in everything.replace(
        'os.environ["MY_TOKEN"]', ""
    ).replace('os.environ[\\"MY_TOKEN\\"]', "")
