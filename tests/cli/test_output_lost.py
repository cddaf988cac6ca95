"""Standard output that is closed, full, or read no more: no rank is to blame."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.cli.streams import Outlet, OutputLost, end_without_output

PROGRAM = """
import torch.distributed as dist
dist.init_process_group("gloo")
for number in range(300):
    print(number, "x" * 60)
    dist.barrier()
dist.destroy_process_group()
"""


class Broken(io.StringIO):
    """Takes so many texts, then fails."""

    def __init__(self, number: int, most: int = 3) -> None:
        super().__init__()
        self.number, self.left = number, most

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(text)


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "prints.py").write_text(PROGRAM)
    return str(tmp_path / "prints.py")


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (errno.EPIPE, 141, ""),
        (errno.ENOSPC, 1, "phalanx: the output cannot be written: No space left on device; "),
    ],
    ids=["head", "full"],
)
def test_no_rank_is_to_blame(script, number, status, said, monkeypatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr("sys.stdout", Broken(number))
    monkeypatch.setattr("sys.stderr", err)
    assert main(["run", "-n", "2", script]) == status
    assert err.getvalue().startswith(said) and err.getvalue().count("\n") == bool(said)


def test_an_outlet_raises_only_where_it_is_asked() -> None:
    outlet = Outlet(Broken(errno.EPIPE, most=1))
    assert outlet.write("one") == 3
    outlet.check()
    assert outlet.write("two") == 3
    outlet.flush()
    with pytest.raises(OutputLost) as found:
        outlet.check()
    outlet.check()
    assert found.value.is_closed and not isinstance(found.value, OSError)
    assert end_without_output(found.value) == 141


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("phalanx", f"{sys.executable} -m phalanx")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=55,
    )


@pytest.mark.programs
@pytest.mark.parametrize(
    ("line", "status", "out", "err"),
    [
        ("phalanx run -n 2 prints.py | head -1; exit ${PIPESTATUS[0]}", 141, "[0-1] 0", None),
        ("phalanx run -n 2 prints.py >&-", 0, "", "300 collectives"),
        ("phalanx run --engine processes -n 2 prints.py <&- 2>&-", 0, "[0-1] 0", None),
        ("phalanx doctor >/dev/full", 1, "", "No space left"),
    ],
    ids=["head", "closed", "err-closed", "doctor"],
)
def test_from_a_shell(script, tmp_path, line, status, out, err) -> None:
    done = shell(line, tmp_path)
    assert (done.returncode, out in done.stdout) == (status, True), done
    assert done.stderr == "" if err is None else err in done.stderr, done
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 1


CLOSES = """
import sys
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    sys.stdout.close()
    assert sys.stdout.closed
    try:
        print("lost")
    except ValueError as error:
        print(error, file=sys.stderr)
dist.barrier()
if dist.get_rank() == 0:
    print("goes on", sys.stdout.closed)
dist.destroy_process_group()
"""


def test_a_rank_closes_standard_output_for_itself_alone(tmp_path, capsys) -> None:
    (tmp_path / "closes.py").write_text(CLOSES)
    assert main(["run", "-n", "2", str(tmp_path / "closes.py")]) == 0
    out, err = capsys.readouterr()
    assert out.split() == ["[0]", "goes", "on", "False"]
    assert err.split("\n")[0].split()[:2] == ["[1]", "I/O"]
