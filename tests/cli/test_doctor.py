"""`phalanx doctor`: options, exit status, and that the real facts can be collected."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from phalanx.cli import machine_facts
from phalanx.cli.main import main
from phalanx.emulation.patch_table import TABLE
from phalanx.report.health import TorchFacts
from phalanx.report.layout import WIDTH

SOUND = TorchFacts(backends={"gloo": True}, own_folder=True)


@pytest.fixture
def torch_says(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the answer that the process with torch would give."""

    def says(facts: TorchFacts) -> None:
        monkeypatch.setattr(machine_facts, "ask_torch", lambda: facts)

    return says


def test_the_exit_status_says_whether_something_is_wrong(
    torch_says: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    torch_says(SOUND)
    assert main(["doctor", "-n", "2"]) == 0
    assert capsys.readouterr().out.startswith("phalanx doctor: nothing is wrong")
    torch_says(TorchFacts("ImportError: libfoo.so"))
    assert main(["doctor", "-n", "2"]) == 1
    assert capsys.readouterr().out.startswith("phalanx doctor: 1 thing is wrong")


def test_json_has_all_rows(torch_says: Any, capsys: pytest.CaptureFixture[str]) -> None:
    torch_says(SOUND)
    assert main(["doctor", "--json", "-n", "2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["wrong"] == 0
    assert len(data["patches"]) == len(TABLE)
    assert data["ranks"] == 2
    assert data["torch"]["backends"] == {"gloo": True}


def test_patches_lists_every_name(torch_says: Any, capsys: pytest.CaptureFixture[str]) -> None:
    torch_says(SOUND)
    assert main(["doctor", "--patches", "-n", "2"]) == 0
    shown = capsys.readouterr().out
    assert all(row.path in shown for row in TABLE)
    assert all(len(line) <= WIDTH for line in shown.splitlines() if len(line.split()) > 1)


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "-n", "none"])
    assert left.value.code == 2
    assert "'none' is no number of ranks: give 1 or more" in capsys.readouterr().err


def test_the_real_torch_answers() -> None:
    facts = machine_facts.ask_torch()
    assert facts.error is None
    assert facts.backends["gloo"]
    assert isinstance(facts.own_folder, bool)


def test_a_torch_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_facts, "_PROBE", "raise ImportError('libfoo.so: not found')")
    assert machine_facts.ask_torch() == TorchFacts("ImportError: libfoo.so: not found")
    monkeypatch.setattr(machine_facts, "_PROBE", "import os; os.kill(os.getpid(), 9)")
    assert machine_facts.ask_torch() == TorchFacts("exit status -9")
    monkeypatch.setattr(machine_facts, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(machine_facts, "PATIENCE", 0.5)
    assert machine_facts.ask_torch() == TorchFacts("no answer within 0.5 s")


def test_the_doctor_itself_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from phalanx.cli import doctor, machine_facts\n"
        "machine_facts.ask_torch = lambda: machine_facts.TorchFacts()\n"
        "machine_facts.collect(2)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_limits_of_this_machine_can_be_read() -> None:
    limits = machine_facts.read_limits()
    assert limits.cores >= 1
    assert limits.threads is None or limits.threads_used >= 1
    assert limits.open_files is None or limits.open_files > 2
