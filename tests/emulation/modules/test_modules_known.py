"""Libraries that keep a process's state in their modules are each rank's own in scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.emulation.modules.known_libraries import LIBRARIES, is_known

STATE = "shared = {}\n"
ENGINE = """
import os
class Engine:
    def __init__(self):
        self.circle = self
    def __del__(self):
        import accelerate
        print("gone", os.environ["RANK"], accelerate.shared["rank"])
"""
SCRIPT = """
import os
import torch.distributed as dist
import accelerate, above, plain
dist.init_process_group("gloo")
for library in (accelerate, plain):
    library.shared.setdefault("rank", dist.get_rank())
dist.barrier()
print(accelerate.shared["rank"], above.accelerate is accelerate, len(plain.imports))
def main():
    accelerate.Engine()
main()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for installed packages, with one of the list, one above it and one beside it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "accelerate.py").write_text(STATE + ENGINE)
    (folder / "above.py").write_text("import accelerate\n")
    (folder / "plain.py").write_text(f"{STATE}imports = [1]\n")
    for name, requires in (
        ("above", "yaml\nRequires-Dist: Accelerate[x]>=1"),
        ("plain", 'accelerate; extra == "all"'),
    ):
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {requires}\n"
        (info / "METADATA").write_text(text)
    monkeypatch.syspath_prepend(folder)
    return folder


def test_what_requires_one_of_the_list_belongs_to_it(site: Path) -> None:
    assert is_known("accelerate")
    assert is_known("above")
    assert not is_known("plain"), "extras do not count"
    assert not is_known("no_such_package")


def test_only_what_is_there_is_apart_and_sharing_is_possible(site: Path) -> None:
    assert IsolationRule(script=True).decide("accelerate")
    assert not IsolationRule(script=True).decide("lightning_fabric"), "not installed here"
    assert not IsolationRule(script=True, shared=("accelerate",)).decide("accelerate")
    assert not IsolationRule(script=True, shared=("all",)).decide("accelerate")
    assert not IsolationRule().decide("accelerate"), "in run(), isolate= says what"


@pytest.mark.slow
def test_each_rank_of_a_script_has_its_own(site: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "-n", "2", str(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said == ["[0]   0 True 1", "[0]   gone 0 0", "[1]   1 True 1", "[1]   gone 1 1"]


@pytest.mark.slow
def test_a_library_s_own_module_is_each_rank_s_program(site: Path) -> None:
    """To find it, the launcher imports the packages it is in; the ranks have their own."""
    package = site / "deepspeed"
    package.mkdir()
    (package / "__init__.py").write_text(f"{STATE}import accelerate\n")
    (package / "check.py").write_text(
        "import sys\n"
        "assert 'deepspeed' in sys.modules, 'as Python imports it before'\n"
        "import torch.distributed as dist\n"
        "from deepspeed import accelerate, shared\n"
        "dist.init_process_group('gloo')\n"
        "for state in (shared, accelerate.shared):\n"
        "    state.setdefault('rank', dist.get_rank())\n"
        "dist.barrier()\n"
        "print(shared, accelerate.shared)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "-n", "2", "-m", "deepspeed.check"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}]   {{'rank': {rank}}} {{'rank': {rank}}}" for rank in range(2)
    ]


def test_every_library_has_its_reason_and_versions() -> None:
    assert len({library.package for library in LIBRARIES}) == len(LIBRARIES)
    assert all(library.reason and library.versions for library in LIBRARIES)
