"""Programs that start some of their ranks and are one themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running.test_children import launch_text


def test_a_program_that_is_a_rank_keeps_its_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_settings_of_it.py").write_text("rate = 1\n")
    text = """
import pickle
import _settings_of_it

def square(x):
    return x * x

def work(rank):
    init(rank, 2)
    import _settings_of_it as late
    print(rank, late is _settings_of_it, late.rate, sys.modules[__name__].square is square)
    print(rank, pickle.loads(pickle.dumps(square)) is square, flush=True)
    dist.barrier()

if __name__ == "__main__":
    _settings_of_it.rate = 2
    child = mp.get_context("spawn").Process(target=work, args=(1,))
    child.start()
    work(0)
    child.join()
    import _settings_of_it as last
    print(last is _settings_of_it, sys.modules["__main__"].square is square)
"""
    found = launch_text(tmp_path, text)
    assert found.error is None and [world.error for world in found.worlds] == [None]
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:-1]) == [
        "0 True",
        "0 True 2 True",
        "1 True",
        "1 True 1 True",
    ]
    assert lines[-1] == "True True"
