"""Write packages and scripts to a folder and run them, for the tests of modules per rank."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.callsite import is_library
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.engines.program import load_script
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.script_on_threads import run_program


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


BEGINNING = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
"""


def run_script(
    folder: Path,
    text: str,
    files: Mapping[str, str],
    *,
    beginning: str = BEGINNING,
    ranks: int = 3,
    **options: Any,
) -> None:
    """Run a script beside these files on ranks, and see that it leaves nothing behind."""
    write(folder, files)
    write(folder, {"script.py": beginning + textwrap.dedent(text)})
    program = load_script(str(folder / "script.py"), [])
    before = surroundings()
    rule = options.pop("rule", None) or IsolationRule(script=True)
    try:
        run_program(program, Settings(ranks=ranks, init=False, modules=rule, **options))
    finally:
        after = surroundings()
        own = {name for name in sys.modules if name.partition(".")[0] in tops(files)}
        assert (after, own) == (before, set())


def tops(files: Mapping[str, str]) -> set[str]:
    return {name.partition("/")[0].removesuffix(".py") for name in files}


def surroundings() -> tuple[Any, ...]:
    """What a run must leave as it was."""
    bootstrap: Any = importlib._bootstrap
    return (
        id(sys.modules),
        type(sys.modules),
        sys.modules["__main__"],
        list(sys.meta_path),
        list(sys.path),
        {folder for folder in sys.path_importer_cache if not is_library(folder + os.sep)},
        builtins.__import__,
        bootstrap._get_module_lock,
    )
