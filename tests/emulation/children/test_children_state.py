"""Programs that start their ranks themselves: whose state is whose, before and after."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phalanx.engines.program import load_script
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.self_spawning_scripts import run_launched

SEEDS = """
import time, torch, torch.multiprocessing as mp

def draw(rank):
    torch.manual_seed(rank)
    torch.rand(3)

if __name__ == "__main__":
    drawn = []
    for _ in range(3):
        torch.manual_seed(6)
        time.sleep(0.05)
        drawn.append(torch.rand(()).item())
        mp.start_processes(draw, nprocs=2, start_method="{method}")
    assert len(set(drawn)) == 1, drawn
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_program_has_its_generator_back_when_its_last_rank_has_ended(
    method: str, tmp_path: Path
) -> None:
    launch_text(tmp_path, SEEDS.format(method=method))


LIBRARY = """
import ignite, os, torch.distributed as dist, torch.multiprocessing as mp

class Own(ignite.Base):
    pass

def work(rank, folder):
    assert issubclass(Own, ignite.Base)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1234")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    ignite.place = rank
    dist.barrier()
    assert ignite.place == rank
    dist.destroy_process_group()

if __name__ == "__main__":
    ignite.place = "outside"
    mp.start_processes(work, args=(".",), nprocs=2, start_method="{method}")
    assert ignite.place == "outside"
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_libraries_that_the_program_has_imported_are_each_ranks_own(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "ignite"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("place = None\nclass Base: pass\n")
    monkeypatch.syspath_prepend(str(package.parent))
    try:
        launch_text(tmp_path, LIBRARY.format(method=method))
    finally:
        sys.modules.pop("ignite", None)


def launch_text(folder: Path, text: str) -> None:
    path = folder / "script.py"
    path.write_text(text)
    found = run_launched(load_script(str(path), []), Settings(ranks=1, init=False))
    assert found.error is None, found.error
    assert [world.error for world in found.worlds] == [None] * len(found.worlds)
    assert found.worlds
