"""Replaced names: each has a row, their number does not grow, and all of them come back."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.cli.main import main
from phalanx.emulation import patch_installer, patch_table, run_patches
from phalanx.emulation.patch_installer import Held, Kept, find_owner, put_in, read, replaced
from phalanx.emulation.patch_table import (
    IF_STILL_OURS,
    IMPORTED,
    MODES,
    OWN_MODULES,
    SWAPS,
    TABLE,
    THREADS,
    PatchRow,
)
from phalanx.emulation.run_patches import patched
from phalanx.emulation.state import interpreter

ROOT = Path(phalanx.__file__).parent


# -- the table --------------------------------------------------------------------------------


def test_every_row_is_there_once_and_says_what_it_is_for() -> None:
    twice = [key for key, n in Counter((row.path, row.when) for row in TABLE).items() if n > 1]
    assert not twice
    for row in (*TABLE, *SWAPS):
        assert row.when in MODES
        assert len(row.why) > 20
        assert row.undo


def test_the_table_needs_neither_torch_nor_the_engines() -> None:
    code = (
        "import sys, phalanx.emulation.patch_table, phalanx.emulation.patch_installer\n"
        "assert 'torch' not in sys.modules\n"
        "assert not any(name.startswith('phalanx.engines') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_of_torch_and_python_lead_somewhere() -> None:
    """A name that has gone with a new version would else be replaced no longer, unnoticed."""
    absent = {row.path for row in TABLE if row.when == THREADS and not is_there(row)}
    assert absent <= MAY_BE_ABSENT


MAY_BE_ABSENT = {
    f"{patch_table._C10D}.ProcessGroupNCCL",
}


def is_there(row: PatchRow) -> bool:
    owner = find_owner(row.owner)
    # loggers have their attributes themselves, not in the class
    of_instances = row.owner in ("logging.Logger", "logging.Manager")
    return owner is not None and (hasattr(owner, row.name) or of_instances)


def test_what_is_compared_at_hand_overs_is_listed() -> None:
    listed = {(id(find_owner(row.owner)), row.name) for row in SWAPS}
    for owner, name in interpreter.PLACES:
        assert (id(owner), name) in listed or name == "limit"


# -- the installer ----------------------------------------------------------------------------


class Base:
    def inherited(self) -> str:
        return "base"


class Victim(Base):
    plain = 1

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table for the classes of this module."""
    names = ("plain", "static", "of_class", "inherited", "new", "__class__")
    table = tuple(
        PatchRow(f"{__name__}.Victim", name, THREADS, "to be tested") for name in names
    )
    table += (
        PatchRow(f"{__name__}.Victim", "wrapped", THREADS, "to be tested", IF_STILL_OURS),
    )
    monkeypatch.setattr(patch_installer, "TABLE", table)
    monkeypatch.setattr(patch_installer, "_rows", {})
    yield


@pytest.mark.usefixtures("rows")
def test_what_was_there_comes_back_exactly() -> None:
    before = dict(vars(Victim))
    take_out = put_in(
        THREADS,
        [
            (Victim, "static", staticmethod(lambda: "ours")),
            (Victim, "of_class", classmethod(lambda cls: "ours")),
            (Victim, "inherited", lambda self: "ours"),
            (Victim, "new", 1),
        ],
    )
    assert Victim.static() == Victim.of_class() == Victim().inherited() == "ours"
    take_out()
    assert dict(vars(Victim)) == before
    assert type(vars(Victim)["static"]) is staticmethod
    assert "inherited" not in vars(Victim)
    take_out()  # a second time does nothing
    assert dict(vars(Victim)) == before


@pytest.mark.usefixtures("rows")
def test_all_or_none() -> None:
    before = dict(vars(Victim))

    def patches() -> Iterator[patch_installer.Patch]:
        yield Victim, "plain", 2
        yield Victim, "static", None
        raise OSError("no third one")

    with pytest.raises(OSError, match="no third one"):
        put_in(THREADS, patches())
    assert dict(vars(Victim)) == before


@pytest.mark.usefixtures("rows")
def test_ctrl_c_while_names_are_put_back_leaves_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = dict(vars(Victim))
    take_out = put_in(THREADS, [(Victim, "plain", 2), (Victim, "new", 1)])
    put_back = patch_installer._put_back
    presses = iter([KeyboardInterrupt])

    def interrupted(*given: Any) -> None:
        for press in presses:
            raise press
        put_back(*given)

    monkeypatch.setattr(patch_installer, "_put_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take_out()
    assert dict(vars(Victim)) == before


def test_a_run_after_one_whose_names_could_not_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(run_patches, "call_patches", fail)
        with pytest.raises(RuntimeError, match="no"):
            phalanx.run(dist.get_rank, ranks=2)
    gc.collect()
    assert phalanx.run(dist.get_rank, ranks=2) == [0, 1]


@pytest.mark.usefixtures("rows")
def test_a_name_without_a_row_is_refused_and_nothing_stays() -> None:
    with pytest.raises(LookupError, match=r"unlisted has no row in patch_table.py"):
        put_in(THREADS, [(Victim, "plain", 2), (Victim, "unlisted", 1)])
    with pytest.raises(LookupError, match="for the mode 'own modules'"):
        put_in(OWN_MODULES, [(Victim, "plain", 2)])
    assert Victim.plain == 1
    assert not hasattr(Victim, "unlisted")


@pytest.mark.usefixtures("rows")
def test_what_somebody_else_has_replaced_since_stays_where_the_row_says_so() -> None:
    take_out = put_in(THREADS, [(Victim, "wrapped", 1), (Victim, "plain", 2)])
    Victim.wrapped = Victim.plain = 3  # type: ignore[attr-defined]
    take_out()
    assert Victim.wrapped == 3  # type: ignore[attr-defined]
    assert Victim.plain == 1
    del Victim.wrapped  # type: ignore[attr-defined]


@pytest.mark.usefixtures("rows")
def test_holds_are_counted_and_undone_in_reverse() -> None:
    order: list[str] = []

    def begin(stack: ExitStack) -> None:
        order.append("begin")
        stack.callback(order.append, "last")
        stack.callback(put_in(THREADS, [(Victim, "plain", 2)]))
        stack.callback(lambda: order.append(f"first, {Victim.plain}"))

    held = Held(begin)
    with held.held():
        with held.held():
            assert Victim.plain == 2
        assert Victim.plain == 2
    assert Victim.plain == 1
    assert order == ["begin", "first, 2", "last"]
    with held.held():
        assert Victim.plain == 2
    assert Victim.plain == 1


@pytest.mark.usefixtures("rows")
def test_a_beginning_that_fails_is_undone() -> None:
    def begin(stack: ExitStack) -> None:
        stack.callback(put_in(THREADS, [(Victim, "plain", 2)]))
        raise ValueError("in the middle")

    held = Held(begin)
    for _ in range(2):
        with pytest.raises(ValueError, match="in the middle"):
            held.hold()
        assert Victim.plain == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_hold_although_a_thread_of_its_parent_was_about_to() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def begin(stack: ExitStack) -> None:
        inside.set()
        go_on.wait()

    held = Held(begin)
    thread = threading.Thread(target=held.hold)
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        go_on.set()
        held.hold()
        os._exit(0)
    go_on.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.usefixtures("rows")
def test_kept_replacements_are_made_again_for_another_original() -> None:
    made: list[Any] = []

    def make() -> list[patch_installer.Patch]:
        made.append(Victim.plain)
        return [(Victim, "plain", -Victim.plain)]

    kept = Kept(make)
    for _ in range(2):
        with replaced(THREADS, kept.patches()):
            assert Victim.plain == -1
    assert made == [1]
    Victim.plain = 5
    try:
        with replaced(THREADS, kept.patches()):
            assert Victim.plain == -5
    finally:
        Victim.plain = 1


def test_paths_lead_to_modules_classes_and_objects() -> None:
    assert find_owner("os") is os
    assert find_owner("os.environ") is os.environ
    assert find_owner("torch.distributed.Store") is dist.Store
    assert find_owner("torch.no_such_thing.at_all") is None
    assert find_owner("no_such_module") is None
    assert read(SimpleNamespace(), "__class__") is SimpleNamespace


# -- in runs ----------------------------------------------------------------------------------


def everything() -> dict[tuple[str, str], Any]:
    """What stands at the name of every row whose owner is there."""
    found = {}
    for row in TABLE:
        owner = find_owner(row.owner)
        names = list(vars(owner)) if row.name == "*" and owner else [row.name]
        if owner is not None:
            found |= {(row.owner, name): read(owner, name) for name in names}
    return found


def assert_same(before: dict[tuple[str, str], Any]) -> None:
    after = everything()
    assert [key for key in before if after[key] is not before[key]] == []


def test_every_name_of_mode_threads_is_replaced_while_a_world_is_open() -> None:
    before = everything()
    with patched():
        now = everything()
    changed = {".".join(key) for key in before if now[key] is not before[key]}
    expected = {row.path for row in TABLE if row.when == THREADS and is_there(row)}
    # A test before this one may have imported parts of torch that are patched when imported.
    later = {row.path for row in TABLE if row.when == IMPORTED}
    assert changed <= expected | later | MAY_BE_ABSENT
    assert expected - changed <= {
        "sys.excepthook",  # put back after torch, which wraps it
        "os.chdir",
        "os.fchdir",
        "torch.cuda._lazy_init",
        "torch.cuda.memory._lazy_init",
        "torch.cuda.random._lazy_init",
        "torch.autograd._engine_run_backward",
    }


def trains() -> None:
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    thread.join()
    dist.all_reduce(torch.ones(1))


def fails() -> None:
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.barrier()


def disagrees() -> None:
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (trains, None),
        (fails, phalanx.RankFailedError),
        (disagrees, phalanx.CollectiveMismatchError),
    ],
)
def test_after_a_run_every_name_is_as_before(
    body: Callable[[], None], error: type[Exception] | None
) -> None:
    before = everything()
    if error is None:
        phalanx.run(body, ranks=2)
    else:
        with pytest.raises(error):
            phalanx.run(body, ranks=2)
    gc.collect()
    assert_same(before)


SCRIPT = """
import random, threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
thread = threading.Thread(target=random.random)
thread.start()
thread.join()
dist.all_reduce(torch.ones(1 + FAULT * dist.get_rank()))
"""
SPAWNING = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank):
    dist.init_process_group("gloo", "tcp://127.0.0.1:29500", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1 + FAULT * rank))
if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""


@pytest.mark.parametrize("fault", [0, 1])
@pytest.mark.parametrize(("source", "options"), [(SCRIPT, ["-n", "2"]), (SPAWNING, [])])
def test_after_a_script_every_name_is_as_before(
    source: str, options: list[str], fault: int, tmp_path: Path
) -> None:
    """Modules of their own, helper threads, output by rank, ranks that it starts itself."""
    script = tmp_path / "script.py"
    script.write_text(source.replace("FAULT", str(fault)))
    before = everything()
    assert main(["run", "-q", *options, str(script)]) == 3 * fault
    gc.collect()
    assert_same(before)


# -- nobody else ------------------------------------------------------------------------------

SWAP = "puts each rank's value of a listed name there, and the caller's back"
OURS = "sets attributes of our own objects"
JUSTIFIED = {
    "backend.losses.corruption": "ends of groups, which are ours, for one call",
    "emulation.patch_installer": "the installer",
    "emulation.state.interpreter": SWAP,
    "emulation.state.switcher": SWAP,
    "emulation.state.torch_attributes": SWAP,
    "emulation.state.warning_filters": SWAP,
    "emulation.modules.monkeypatches": "what the program has replaced, for each rank its own",
    "emulation.modules.module_tables": "passes on what a program sets in its own module",
    "emulation.children.parent_state": "gives a spawned rank what its parent had set",
    "emulation.children.spawn_payload": "gives a spawned rank what its parent had set",
    "engines.threads.threads_engine": "sys.excepthook, which torch wraps in every run",
    "engines.threads.script_on_threads": SWAP,
    "core.thread_pool": "the type of a C function",
    "engines.threads.self_spawning_scripts": "sys.argv and the start method of a script",
    "engines.processes.process_state": "puts back what the program of a rank has replaced",
    "engines.remote.failure_evidence": OURS,
    "backend.devices.device_calls": OURS,
    "backend.dispatch": OURS,
    "backend.torch_world": OURS,
    "emulation.state.rank_settings": OURS,
    "testing.pytest.fixture_scopes": OURS,
    "blackbox.__main__": "sys.argv and sys.path of the program that it runs",
    "testing.pytest_compat.pytest_private": "options of a session that is ours",
    "testing.pytest_compat.fixture_standins": "the monkeypatch of a test",
    "testing.torch_compat.cases": OURS,
    "cli.streams": "gives a process that was started without standard streams some",
    "backend.torch_private.private_meshes": "gives one mesh its maker while it is being made",
    "backend.torch_private.private_settings": "writes a setting of torch, as programs do",
}
"""Modules that set attributes by name, or of what they import from others, and why."""


def test_nobody_but_the_installer_replaces_names_of_others() -> None:
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for path in sorted(ROOT.rglob("*.py"))
    }
    found = {module: list(find_replacements(text)) for module, text in sources.items()}
    unjustified = {module: lines for module, lines in found.items() if lines}
    assert {m: lines for m, lines in unjustified.items() if m not in JUSTIFIED} == {}
    assert [module for module in JUSTIFIED if module not in unjustified] == []


@pytest.mark.parametrize(
    ("source", "is_one"),
    [
        ("import os\nos.write = mine", True),
        ("import os\ndel os.write", True),
        ("from os import path\npath.join = path.sep = mine", True),
        ("import sys\na, sys.path = 1, 2", True),
        ("import sys\n_sys: Any = sys\n_sys.path = 1", True),
        ("import torch.nn\ntorch.nn.Linear.forward = mine", True),
        ("import os\nvars(os)['write'] = mine", True),
        ("import os\nvars(os).update(write=mine)", True),
        ("setattr(owner, 'name', mine)", True),
        ("partial(delattr, owner, 'name')", True),
        ("from phalanx import model\nmodel.thing = 1", False),
        ("self.thing = 1\nvars(self)['a'] = 1", False),
        ("import weakref\nweakref.finalize(a, b).atexit = False", False),
        ("import os\nos.environ['A'] = '1'", False),
    ],
)
def test_the_finder_of_replacements(source: str, is_one: bool) -> None:
    assert bool(list(find_replacements(source))) is is_one


def find_replacements(source: str) -> Iterator[str]:
    """Lines that set or delete an attribute by name, or one of what others have made."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, OF_INTEREST)]
    foreign = foreign_names(nodes)
    for node in nodes:
        if isinstance(node, ast.Call) and calls_setter(node, foreign):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif any(is_of_foreign(target, foreign) for target in targets_of(node)):
            yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


OF_INTEREST = (ast.Import, ast.ImportFrom, ast.Call, ast.Assign, ast.AnnAssign, ast.AugAssign)
OF_INTEREST += (ast.Delete,)


def foreign_names(nodes: list[Any]) -> set[str]:
    """What is imported from elsewhere, and other names for the same."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [(each.name, each.asname or each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "", each.asname or each.name) for each in node.names]
        else:
            continue
        found |= {name.partition(".")[0] for whole, name in names if not is_ours(whole)}
    for node in nodes:
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and root_of(value) in found:
            found |= {each.id for each in targets_of(node) if isinstance(each, ast.Name)}
    return found


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "phalanx"


def targets_of(node: ast.AST) -> Iterator[ast.expr]:
    targets: list[ast.expr] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def is_of_foreign(target: ast.expr, foreign: set[str]) -> bool:
    if isinstance(target, ast.Subscript):
        return isinstance(target.value, ast.Call) and is_vars(target.value, foreign)
    return isinstance(target, ast.Attribute) and root_of(target) in foreign


def root_of(expression: ast.expr | None) -> str | None:
    """The name that a chain of attributes begins with."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def is_vars(call: ast.Call, foreign: set[str]) -> bool:
    return (
        isinstance(call.func, ast.Name)
        and call.func.id == "vars"
        and any(isinstance(each, ast.Name) and each.id in foreign for each in call.args)
    )


def calls_setter(call: ast.Call, foreign: set[str]) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        inner = function.value
        if function.attr == "update" and isinstance(inner, ast.Call):
            return is_vars(inner, foreign)
        return function.attr in SETTERS
    names = [function, *call.args[:1]]
    return any(isinstance(each, ast.Name) and each.id in SETTERS for each in names)


SETTERS = {"setattr", "delattr"}
