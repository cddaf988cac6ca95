"""Imports point down only, torch stays out of the lower layers, and its private names in one
folder; folders stay small and no module has the name of another. The table is the one in
docs/design.md, section "Layers".
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.emulation.patch_table import BLACK_BOX, TABLE, VIRTUAL_CLOCK

ROOT = Path(__file__).parent.parent / "src"
LONGEST = 600

# A layer, and those that its modules may import from besides their own.
LAYERS = {
    "words": set[str](),
    "core": {"words"},
    "journal": {"words"},
    "report": {"journal", "words"},
    "matching": {"core", "journal", "words"},
    "checks": {"matching", "journal", "words"},
}
LAYERS["backend"] = {*LAYERS}
LAYERS["emulation"] = {*LAYERS}
LAYERS["engines"] = {*LAYERS}
LAYERS["explore"] = {*LAYERS}
LAYERS["explain"] = {*LAYERS}
LAYERS["doors"] = {*LAYERS}
LAYER_OF = {
    "__init__": "doors",
    "__main__": "doors",
    "blackbox": "doors",
    "cli": "doors",
    "testing": "doors",
    "conformance": "doors",
    "explain": "explain",
    "explore": "explore",
    "faults": "words",
    "engines": "engines",
    "emulation": "emulation",
    "backend": "backend",
    "checks": "checks",
    "matching": "matching",
    "report": "report",
    "journal": "journal",
    "core": "core",
    "model": "words",
    "kinds": "words",
    "errors": "words",
    "callsite": "words",
    "costs": "words",
    "source_algebra": "words",
    "source_exits": "words",
    "source_flows": "words",
    "source_text": "words",
    "source_updates": "words",
    "source_pairs": "words",
    "source_uses": "words",
    "source_values": "words",
    "system": "words",
    "options": "words",
    "shown": "words",
}
WITHOUT_TORCH = {"core", "journal", "matching", "checks", "report", "words", "explain"}
MAY_TOUCH_PRIVATE_TORCH = "phalanx.backend.torch_private."
MOST_PATCHES = 241
"""Names of others that are replaced in runs. It only goes down: a name that one rare program
needs is not replaced, that program takes `--engine processes`."""
OF_BLACK_BOX = 3
"""Names that the black box replaces in ranks of other launchers, and in no run of ours."""
OF_VIRTUAL_CLOCK = 15
"""Names that are replaced only if the user asks for a virtual clock: what reads the time, or
waits for some, and else would contradict its sleeps."""
MOST_MODULES = 16
"""In one folder: with more a reader does not see what belongs there."""

CLASSES_THAT_MEAN_THE_SAME = {
    # phalanx.errors has the error that a run raises; backend.rank_errors the one that a rank
    # raises, which is also the error that torch would raise there.
    "BackendHazardError",
    "CollectiveMismatchError",
    "DeadlockError",
    "InFlightBufferError",
    "InvalidCallError",
    "StallError",
    "ThreadRaceError",
    "UnwaitedWorkError",
}


def find_faults(
    module: str, source: str, *, package: bool = False, known: frozenset[str] = frozenset()
) -> list[str]:
    """Everything this module imports or touches that it must not, one line each."""
    tree = ast.parse(source)
    layer = layer_of(module)
    if layer is None:
        return [f"{module} belongs to no layer: put it into one"]
    faults = []
    for line, target in imported_names(tree, module, package=package, known=known):
        if target.partition(".")[0] == "phalanx" and not may_import(layer, layer_of(target)):
            faults.append(f"{module}:{line} ({layer}) imports {target}")
        if is_torch(target) and layer in WITHOUT_TORCH:
            faults.append(f"{module}:{line} ({layer}) imports {target}")
    if not module.startswith(MAY_TOUCH_PRIVATE_TORCH):
        faults += [
            f"{module}:{line} touches the private name {name}"
            for line, name in private_torch_names(tree, module, package=package)
        ]
    return faults


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return LAYER_OF.get(parts[1] if len(parts) > 1 else "__init__")


def may_import(importer: str, imported: str | None) -> bool:
    if imported is None:
        return False
    return importer == imported or imported in LAYERS[importer]


def imported_names(
    tree: ast.AST, module: str, *, package: bool, known: frozenset[str] = frozenset()
) -> Iterator[tuple[int, str]]:
    """What is imported, by full name, wherever in the module and in whichever way.

    `from phalanx import model` means `phalanx.model` if that is a module, else a name
    from the door `phalanx`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = origin(node, module, package=package)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                inside = base != "phalanx" or name in known or alias.name in LAYER_OF
                yield node.lineno, name if inside else base
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def origin(node: ast.ImportFrom, module: str, *, package: bool) -> str:
    """The module after `from`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + package]
    return ".".join([*kept, *filter(None, [node.module])])


def called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def private_torch_names(
    tree: ast.AST, module: str, *, package: bool
) -> Iterator[tuple[int, str]]:
    """Private names of torch that are imported, or reached from a name that came from torch."""
    for line, name in imported_names(tree, module, package=package):
        if is_torch(name) and any(map(is_private, name.split("."))):
            yield line, name
    names = set(bound_to_torch(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner, attribute = node.value, node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"getattr", "setattr", "hasattr"}
        ):
            owner, attribute = node.args[0], getattr(node.args[1], "value", "")
        else:
            continue
        if is_private(str(attribute)) and root_name(owner) in names:
            yield node.lineno, f"{ast.unparse(owner)}.{attribute}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def bound_to_torch(tree: ast.AST) -> Iterator[str]:
    """The names in this module that an import from torch has bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_torch(alias.name):
                    yield alias.asname or "torch"
        elif isinstance(node, ast.ImportFrom) and not node.level and is_torch(node.module):
            yield from (alias.asname or alias.name for alias in node.names)


def is_torch(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "torch"


def root_name(node: ast.expr) -> str | None:
    """`dist` in `dist.group.WORLD`, `torch` in `torch.zeros(1)[0]`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = sorted((ROOT / "phalanx").rglob("*.py"))
MODULES = frozenset(map(module_name, PATHS))


def test_there_is_something_to_look_at() -> None:
    assert {"phalanx.model", "phalanx.errors", "phalanx.cli.folded_output"} <= MODULES


@pytest.mark.parametrize("path", PATHS, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    faults = find_faults(
        module_name(path),
        path.read_text(encoding="utf-8"),
        package=path.name == "__init__.py",
        known=MODULES,
    )
    assert faults == []


@pytest.mark.parametrize("path", PATHS, ids=module_name)
def test_no_module_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_no_folder_has_too_many_modules() -> None:
    sizes = Counter(path.parent.relative_to(ROOT) for path in PATHS if path.stem != "__init__")
    assert {str(folder): n for folder, n in sizes.items() if n > MOST_MODULES} == {}


def test_no_engine_imports_another() -> None:
    """What engines share lies in a folder that is none of theirs."""
    engines = ("threads", "processes", "torchrun")
    shared = ("remote", "referee", "look", "serialization")
    faults = []
    for path in PATHS:
        module = module_name(path)
        folder = module.removeprefix("phalanx.engines.").partition(".")[0]
        if module.startswith("phalanx.engines.") and folder in (*engines, *shared):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for line, target in imported_names(tree, module, package=path.stem == "__init__"):
                other = target.removeprefix("phalanx.engines.").partition(".")[0]
                if target != other and other in engines and other != folder:
                    faults.append(f"{module}:{line} imports {target}")
    assert faults == []


def test_the_number_of_patches_never_grows() -> None:
    of_black_box = sum(row.when == BLACK_BOX for row in TABLE)
    assert of_black_box == OF_BLACK_BOX
    of_virtual_clock = sum(row.when == VIRTUAL_CLOCK for row in TABLE)
    assert of_virtual_clock == OF_VIRTUAL_CLOCK
    in_runs = len(TABLE) - of_black_box - of_virtual_clock
    assert in_runs <= MOST_PATCHES
    assert in_runs == MOST_PATCHES, "fewer than before: lower MOST_PATCHES"


def test_no_base_name_occurs_twice() -> None:
    names = Counter(path.stem for path in PATHS if not path.stem.startswith("__"))
    assert [name for name, n in names.items() if n > 1] == []


def test_no_class_name_occurs_twice() -> None:
    names = Counter(
        node.name
        for path in PATHS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, n in names.items() if n > 1} - {*CLASSES_THAT_MEAN_THE_SAME} == set()


def test_every_folder_says_what_belongs_in_it() -> None:
    silent = [
        str(path.parent.relative_to(ROOT))
        for path in PATHS
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("phalanx.core.baton", "import phalanx.backend.process_group"),
        ("phalanx.core.baton", "from phalanx.engines import threads"),
        ("phalanx.core.baton", "from phalanx import run"),
        ("phalanx.core.baton", "from phalanx import backend"),
        ("phalanx.core.baton", "from ..backend import group"),
        ("phalanx.core.baton", "from .. import backend"),
        ("phalanx.core.baton", "def f():\n    import phalanx.backend"),
        ("phalanx.core.baton", "import importlib\nimportlib.import_module('phalanx.cli')"),
        ("phalanx.core.baton", "import torch"),
        ("phalanx.core.baton", "from torch.distributed import Store"),
        ("phalanx.core.baton", "import phalanx.helpers"),
        ("phalanx.checks.match", "from phalanx.report import layout"),
        ("phalanx.report.text", "from phalanx.checks import match"),
        ("phalanx.report.text", "from phalanx.core import baton"),
        ("phalanx.model", "from phalanx.report import layout"),
        ("phalanx.callsite", "import torch"),
        ("phalanx.backend.process_group", "from phalanx.engines import world"),
        ("phalanx.engines.world", "from phalanx.cli import main"),
        ("phalanx.helpers", ""),
        ("phalanx.backend.process_group", "import torch._C"),
        ("phalanx.backend.process_group", "from torch import _C"),
        ("phalanx.backend.process_group", "from torch._C._distributed_c10d import Work"),
        ("phalanx.backend.process_group", "import torch\ntorch._C.x()"),
        (
            "phalanx.backend.process_group",
            "import torch.distributed as dist\ndist.group.WORLD._x",
        ),
        ("phalanx.backend.process_group", "import torch\ngetattr(torch.distributed, '_x')"),
        ("phalanx.backend.process_group", "from torch import Tensor as T\nT.f(1)._make"),
        ("phalanx.cli.main", "from torch.distributed import distributed_c10d as c\nc._world"),
    ],
)
def test_a_fault_is_found(module: str, source: str) -> None:
    assert len(find_faults(module, source)) >= 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("phalanx.core.baton", "from phalanx import model\nimport phalanx.errors"),
        ("phalanx.core.baton", "from . import clock\nfrom ..errors import PhalanxError"),
        ("phalanx.core.baton", "import threading\nthreading._shutdown"),
        ("phalanx.checks.match", "from phalanx.checks import waits\nimport phalanx.model"),
        (
            "phalanx.backend.process_group",
            "import torch\ntorch.__version__\nself._x = torch.zeros(1)",
        ),
        ("phalanx.backend.process_group", "from phalanx.backend import private"),
        ("phalanx.backend.torch_private.private", "import torch\ntorch._C.x()"),
        ("phalanx.engines.world", "import torch\nfrom phalanx.backend import group"),
        ("phalanx.cli.main", "from phalanx import run"),
        ("phalanx", "from phalanx.engines import run"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert find_faults(module, source) == []


def test_relative_imports_of_a_package_start_at_itself() -> None:
    assert find_faults("phalanx.core", "from . import baton", package=True) == []
    assert find_faults("phalanx.core", "from ..cli import main", package=True) != []
