"""Scripts as ranks: each its own `__main__`, whichever thread asks for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phalanx.engines.program import load_module, load_script
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.script_on_threads import run_program
from phalanx.errors import UsageError

PICKLING = """
import pickle, sys, threading
import torch.distributed as dist

class Own:
    pass

def look():
    # by reference, so the class found under __main__ must be this very one
    found.append((pickle.loads(pickle.dumps(Own)) is Own, sys.modules["__main__"].Own is Own))

dist.init_process_group("gloo")
found, thread = [], threading.Thread(target=look)
dist.barrier()
thread.start()
thread.join()
look()
dist.barrier()
sys.modules["__main__"].mark = dist.get_rank()
assert found == [(True, True)] * 2 and mark == dist.get_rank(), found
assert "Own" in dir(sys.modules["__main__"])
"""


def written(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_every_thread_of_a_rank_finds_the_ranks_own_main(tmp_path: Path) -> None:
    before = sys.modules["__main__"]
    program = load_script(written(tmp_path, PICKLING), [])
    assert run_program(program, Settings(ranks=3, init=False))
    assert sys.modules["__main__"] is before


@pytest.mark.parametrize(
    ("text", "settled"),
    [("x = 1", False), ("raise SystemExit(0)", True), ("import sys; sys.exit()", True)],
)
def test_whether_a_script_meant_to_be_distributed(
    tmp_path: Path, text: str, settled: bool
) -> None:
    program = load_script(written(tmp_path, text), [])
    assert run_program(program, Settings(ranks=2, init=False)) is settled


def test_what_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no such script: 'absent.py'"):
        load_script("absent.py", [])
    with pytest.raises(UsageError, match="is a directory"):
        load_script(str(tmp_path), [])
    with pytest.raises(UsageError, match="no module named 'absent_module'"):
        load_module("absent_module", [])
