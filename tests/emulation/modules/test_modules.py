"""Modules per rank: imports in all their forms, and `sys.modules` as programs use it."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import phalanx
from phalanx.emulation.modules.isolation_rule import IsolationRule, is_programs_own
from phalanx.errors import RankFailedError, UsageError
from tests.emulation.modules.module_programs import BEGINNING, run_script, surroundings, write

STATE = """
import os
COUNT = 0
BORN = int(os.environ["RANK"])

def add(number):
    global COUNT
    COUNT += number
"""

CIRCLE = {
    "circle/__init__.py": "from . import one\nfrom .two import Two\n",
    "circle/one.py": "from . import two\nfrom circle import two as two2\nassert two is two2",
    "circle/two.py": """
        from . import one
        from circle import one as again
        import circle.one as third
        assert one is again and not hasattr(one, "two")
        class Two: pass
        """,
    "circle/deep/three.py": "from ..two import Two\nfrom .. import one\n",  # a namespace
}


def test_globals_of_a_script_s_modules_are_each_rank_s_own(tmp_path: Path) -> None:
    text = """
        import state, package.inner.leaf as leaf
        from package import VALUES
        state.add(rank + 1)
        leaf.seen.append(rank)
        VALUES[rank] = True
        dist.barrier()
        assert (state.BORN, state.COUNT) == (rank, rank + 1)
        assert (leaf.seen, VALUES) == ([rank], {rank: True})
        import state as again
        assert again is state is sys.modules["state"]
        import package
        assert package.inner.leaf is leaf is sys.modules["package.inner.leaf"]
        """
    files = {
        "state.py": STATE,
        "package/__init__.py": "VALUES = {}",
        "package/inner/__init__.py": "",
        "package/inner/leaf.py": "seen = []",
    }
    run_script(tmp_path, text, files)


def test_circles_relative_imports_and_namespaces(tmp_path: Path) -> None:
    text = """
        import circle.one as one, circle.two as two
        import circle.deep.three
        assert one.two is two and two.one is one and circle.deep.three.Two is two.Two
        assert circle.one is one and circle.Two is two.Two and two.third.two is two
        from circle.deep import three
        assert three.one is one is __import__("circle.one").one
        from circle.two import *
        assert Two is two.Two
        """
    run_script(tmp_path, text, CIRCLE)


def test_imports_by_name_and_in_threads_of_a_rank(tmp_path: Path) -> None:
    text = """
        import importlib, importlib.util, importlib.resources, pkgutil, threading
        found = importlib.import_module("package.late")
        assert importlib.import_module(".late", "package") is found
        spec = importlib.util.find_spec("package.later")
        assert spec.name == "package.later" and "package.later" not in sys.modules
        def work():
            import package.later
            package.later.mark = rank
            import package.late
            seen.append(package.late is found)
        seen = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        dist.barrier()
        assert seen == [True] and sys.modules["package.later"].mark == rank
        import package
        parts = {each.name for each in pkgutil.iter_modules(package.__path__)}
        assert parts == {"late", "later"}
        assert importlib.resources.files("package").joinpath("late.py").read_text() == "X = 1"
        assert pkgutil.get_data("package", "late.py") == b"X = 1"
        assert pkgutil.resolve_name("package.late:X") == 1
        from unittest import mock
        with mock.patch("package.late.X", rank + 10):
            dist.barrier()
            assert found.X == rank + 10
        assert found.X == 1
        """
    files = {
        "package/__init__.py": "",
        "package/late.py": "X = 1",
        "package/later.py": "mark = None",
    }
    run_script(tmp_path, text, files)


def test_a_module_may_communicate_while_it_is_imported(tmp_path: Path) -> None:
    text = """
        import meeting
        assert (meeting.TOTAL, meeting.RANK) == (sum(range(size)), rank)
        """
    meeting = """
        import torch, torch.distributed as dist
        RANK = dist.get_rank()
        total = torch.tensor(RANK)
        dist.all_reduce(total)
        TOTAL = int(total)
        dist.barrier()
        """
    run_script(tmp_path, text, {"meeting.py": meeting}, timeout=20.0)


def test_modules_that_change_themselves(tmp_path: Path) -> None:
    text = """
        import lazy, typed, dynamic
        assert lazy.answer == 42 and sys.modules["lazy"] is lazy and lazy.own == rank
        typed.value = rank + 1
        dist.barrier()
        assert typed.twice == 2 * rank + 2
        from dynamic import anything
        assert anything == "anything" and dynamic.mark == rank
        """
    files = {
        "lazy.py": """
            import sys, types, torch.distributed as dist
            class Lazy(types.ModuleType):
                answer = 42
            sys.modules[__name__] = Lazy(__name__)
            dist.barrier()
            sys.modules[__name__].own = dist.get_rank()
            """,
        "typed.py": """
            import sys, types
            class Typed(types.ModuleType):
                @property
                def twice(self):
                    return 2 * self.value
            sys.modules[__name__].__class__ = Typed
            """,
        "dynamic.py": """
            import sys, torch.distributed as dist
            setattr(sys.modules[__name__], "mark", dist.get_rank())
            assert mark == dist.get_rank()
            def __getattr__(name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return name
            """,
    }
    run_script(tmp_path, text, files)


def test_sys_modules_is_a_dict_of_the_rank(tmp_path: Path) -> None:
    text = """
        import module
        from unittest import mock
        assert isinstance(sys.modules, dict) and "module" in sys.modules
        assert dict(sys.modules)["module"] is {**sys.modules}["module"] is module
        assert sys.modules.copy()["module"] is (sys.modules | {})["module"] is module
        assert len(sys.modules) == len(list(sys.modules)) == len(sys.modules.items())
        assert dict(sys.modules.items())["module"] is module and module in sys.modules.values()
        assert sys.modules.get("absent", 5) == 5 == sys.modules.pop("absent", 5)
        assert sys.modules.setdefault("module", None) is module
        with mock.patch.dict(sys.modules, {"module.part": module, "made_up": module}):
            import module.part, made_up
        assert "module.part" not in sys.modules and "made_up" not in sys.modules
        assert sys.modules["module"] is module
        try:
            sys.modules["absent"]
        except KeyError:
            pass
        else:
            raise AssertionError
        dist.barrier()
        if rank == 1:  # the others keep theirs
            assert sys.modules.pop("module") is module and "module" not in sys.modules
        dist.barrier()
        import module as again
        assert (again is module) == (rank != 1) and sys.modules["module"] is again
        sys.modules["module"] = None
        try:
            import module
        except ModuleNotFoundError:
            pass
        else:
            raise AssertionError
        """
    run_script(tmp_path, text, {"module.py": "__path__ = []\nX = 1"})


LOAD = """
import importlib.util, types
from importlib.machinery import SourceFileLoader

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
"""


def test_modules_that_a_rank_loads_by_path_or_makes_up_are_its_own(tmp_path: Path) -> None:
    text = """
        import os, pickle, runpy, warnings
        from unittest import mock
        folder = os.path.dirname(__file__)
        try:
            import config  # looked for first
        except ImportError:
            pass
        loaded = load("config", f"{folder}/config{rank}.py")
        deep = load("plugins.first", f"{folder}/config{rank}.py")
        sys.modules["made"] = made = types.ModuleType("made")
        sys.modules.setdefault("by_default", made)
        made.X = rank
        made.Thing = type("Thing", (), {"__module__": "made"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            older = SourceFileLoader("older", f"{folder}/config{rank}.py").load_module()
        if rank == 1:
            sys.modules["only_one"] = made
            sys.modules["forbidden"] = None
        dist.barrier()
        import config, made as again, by_default, older as older_again
        from config import X
        assert config is loaded is sys.modules["config"] is importlib.import_module("config")
        assert X == config.X == again.X == older_again.X == rank
        assert again is made is by_default and older_again is older
        assert importlib.import_module("plugins.first") is deep and deep.X == rank
        assert type(pickle.loads(pickle.dumps(made.Thing()))) is made.Thing
        assert ("only_one" in sys.modules) == ("forbidden" in sys.modules) == (rank == 1)
        with mock.patch.dict(sys.modules, {"patched_in": made}):
            dist.barrier()
            import patched_in
            assert patched_in is made
        assert "patched_in" not in sys.modules
        assert runpy.run_path(f"{folder}/meets.py", {"rank": rank})["found"] == rank
        dist.barrier()
        assert "<run_path>" not in sys.modules
        if rank == 0:
            del sys.modules["config"]
        dist.barrier()
        assert ("config" in sys.modules) == (rank != 0)
        """
    meets = """
        import sys, torch.distributed as dist
        sys.modules[__name__].mine = rank
        dist.barrier()
        found = sys.modules[__name__].mine
        """
    files = {f"config{rank}.py": f"X = {rank}" for rank in range(3)} | {"meets.py": meets}
    run_script(tmp_path, LOAD + textwrap.dedent(text), files)
    gone = {"config", "plugins", "plugins.first", "made", "by_default", "older", "only_one"}
    assert gone.isdisjoint(sys.modules) and "forbidden" not in sys.modules


def test_what_a_loaded_config_replaces_in_torch_is_each_rank_s(tmp_path: Path) -> None:
    text = """
        import os
        for _ in range(20):  # what is replaced later is found by the code that does it
            dist.barrier()
        load("config", os.path.join(os.path.dirname(__file__), f"config{rank}.py"))
        dist.barrier()
        assert torch.nn.functional.relu(1) == rank, torch.nn.functional.relu
        """
    config = "import torch\ntorch.nn.functional.relu = lambda _: {}"
    files = {f"config{rank}.py": config.format(rank) for rank in range(3)}
    before = torch.nn.functional.relu
    run_script(tmp_path, LOAD + textwrap.dedent(text), files)
    assert torch.nn.functional.relu is before


def test_what_stays_shared_although_the_program_puts_it_there(tmp_path: Path) -> None:
    """Parts of shared packages; what was there before; what a shared package puts there; and
    what --share names."""
    text = """
        made = types.ModuleType("made")
        installed.put("by_installed")
        for name in ("torch.made_up", "named_shared", "known_before.part"):
            sys.modules[name] = made
        taken = sys.modules.pop("known_before")
        sys.modules["known_before"] = taken
        dist.barrier()
        seen.append([sys.modules[name] for name in names])
        dist.barrier()
        assert all(each == seen[0] for each in seen) and len(seen) == size
        """
    names = ["torch.made_up", "named_shared", "known_before.part", "known_before"]
    names.append("by_installed")
    installed, before = ModuleType("installed"), ModuleType("known_before")
    vars(installed).update(names=names, seen=[])
    put = "import sys, types\ndef put(name): sys.modules[name] = types.ModuleType(name)"
    exec(put, vars(installed))
    sys.modules.update(installed=installed, known_before=before)
    beginning = BEGINNING + LOAD + "import installed\nfrom installed import names, seen\n"
    rule = IsolationRule(script=True, shared=("named_shared",))
    try:
        run_script(tmp_path, text, {}, beginning=beginning, rule=rule)
        assert sys.modules["known_before"] is before
    finally:
        for name in ["installed", *names]:
            sys.modules.pop(name, None)


def test_reload(tmp_path: Path) -> None:
    text = """
        import importlib, module, os, pathlib
        module.X = rank + 10
        dist.barrier()
        if rank == 0:
            assert importlib.reload(module) is module and module.X == 1
        dist.barrier()
        assert module.X == (1 if rank == 0 else rank + 10)
        dist.barrier()
        if rank == 0:
            pathlib.Path(module.__file__).write_text("X = 'changed'")
        dist.barrier()
        importlib.reload(module)
        assert module.X == "changed", module.X
        """
    run_script(tmp_path, text, {"module.py": "X = 1"})


def test_code_is_compiled_once_and_an_extension_exists_once(tmp_path: Path) -> None:
    text = """
        import package.functions, package.{extension} as extension
        assert package.{extension} is extension
        codes, modules = [None] * size, [None] * size
        dist.all_gather_object(codes, id(package.functions.f.__code__))
        dist.all_gather_object(modules, id(extension))
        assert len(set(modules)) == 1
        if torch.__version__ >= "2.13":  # before, compiled functions hang on the code
            assert len(set(codes)) == 1
        globals_of = [None] * size
        dist.all_gather_object(globals_of, id(package.functions.f.__globals__))
        assert len(set(globals_of)) == size
        """
    name, file = extension()
    files = {"package/__init__.py": "", "package/functions.py": "def f(): pass"}
    write(tmp_path, files)
    (tmp_path / "package" / Path(file).name).write_bytes(Path(file).read_bytes())
    run_script(tmp_path, text.replace("{extension}", name), files)


def extension() -> tuple[str, str]:
    """An extension module of Python's own that lies in a file."""
    for name in ("_bisect", "_json", "_csv", "_heapq", "_queue"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.has_location and spec.origin:
            return name, spec.origin
    pytest.skip("all of Python's extension modules are built in")


def test_what_is_imported_before_stays_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"early/__init__.py": "", "early/part.py": "SEEN = []"})
    monkeypatch.syspath_prepend(str(tmp_path))
    import early.part  # type: ignore[import-not-found]

    text = """
        from early import part
        part.SEEN.append(rank)
        dist.barrier()
        assert part.SEEN == list(range(size))
        """
    run_script(tmp_path, text, {})
    assert early.part.SEEN == [0, 1, 2]
    for name in ("early", "early.part"):
        del sys.modules[name]


# -- which packages -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch", "phalanx", "json", "sys", "pytest", "no_such_thing"])
def test_what_is_not_the_program_s_own(name: str) -> None:
    assert not is_programs_own(name)


def test_the_program_s_own_lies_outside_of_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages"
    files = {"installed_one.py": "", "installed_package/__init__.py": ""}
    write(installed, files)
    write(tmp_path, {"mine.py": "", "spread/part.py": ""})
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_programs_own("mine") and is_programs_own("spread")
    assert not is_programs_own("installed_one") and not is_programs_own("installed_package")
    (installed / "spread").mkdir()  # part of the namespace is installed
    importlib.invalidate_caches()
    assert not is_programs_own("spread")


@pytest.mark.parametrize(
    ("rule", "own"),
    [
        (IsolationRule(script=True), {"mine": True, "other": True}),
        (IsolationRule(script=True, shared=("mine",)), {"mine": False, "other": True}),
        (IsolationRule(script=True, shared=("all",)), {"mine": False, "other": False}),
        (
            IsolationRule(("mine",), script=True, shared=("all",)),
            {"mine": True, "other": False},
        ),
        (IsolationRule(("mine",)), {"mine": True, "other": False}),
    ],
)
def test_rules(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: IsolationRule,
    own: Mapping[str, bool],
) -> None:
    write(tmp_path, {"mine.py": "", "other.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {name: rule.decide(name) for name in own} == own
    assert {name: rule.covers(f"{name}.part") for name in own} == own


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("mine", r"isolate='mine': give a tuple of packages, e.g. isolate=\('mine',\)"),
        (3, "isolate=3: give a tuple of packages"),
        ((3,), "3 is no name of a package"),
        (("",), "'' is no name of a package"),
        (("my-package",), "'my-package' is no name of a package; write e.g. megatron"),
        (("a.b",), "a.b is inside a, which all ranks would share; write a"),
        (("torch",), "torch is shared by all ranks and cannot be isolated"),
        (("json",), "json is shared by all ranks"),
        (("__main__",), "__main__ is each rank's own in scripts"),
        (("no_such_package",), "no package named 'no_such_package'"),
    ],
)
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_names_that_cannot_be_isolated(given: Any, told: str, engine: str) -> None:
    with pytest.raises(UsageError, match=told):
        phalanx.run(print, ranks=2, engine=engine, isolate=given)


# -- run(isolate=) and World ------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that the caller has imported as well."""
    files = {"mine/__init__.py": "from .part import C\nV = 0", "mine/part.py": "class C: pass"}
    write(tmp_path, files)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("mine")
    yield str(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def add() -> tuple[int, object]:
    import mine  # type: ignore[import-not-found]
    import torch.distributed as dist

    mine.V += dist.get_rank() + 1
    dist.barrier()
    assert type(mine.C()) is sys.modules["mine.part"].C
    return mine.V, mine


def test_named_packages_are_the_ranks_own_although_the_caller_has_them(mine: str) -> None:
    outer, before = sys.modules["mine"], surroundings()
    (first, one), (second, other) = phalanx.run(add, ranks=2, isolate=("mine",))
    assert (first, second, outer.V) == (1, 2, 0)
    assert len({id(one), id(other), id(outer)}) == 3
    assert sys.modules["mine"] is outer and surroundings() == before
    assert [value for value, _ in phalanx.run(add, ranks=2)] != [1, 2], "shared without it"


def test_a_world_keeps_its_modules_until_a_run_fails(mine: str) -> None:
    with phalanx.World(ranks=2, isolate=["mine"]) as world:
        assert [value for value, _ in world.run(add)] == [1, 2]
        assert [value for value, _ in world.run(add)] == [2, 4]
        with pytest.raises(RankFailedError):
            world.run(lambda: 1 / 0)
        assert [value for value, _ in world.run(add)] == [1, 2]
    assert sys.modules["mine"].V == 0


def test_a_nested_run_sees_the_modules_of_its_rank_or_its_own(mine: str) -> None:
    def inner() -> int:
        return int(sys.modules["mine"].V)

    def outer() -> tuple[list[int], list[int]]:
        value, _ = add()
        apart = [each for each, _ in phalanx.run(add, ranks=2, isolate=("mine",))]
        assert value == sys.modules["mine"].V
        return phalanx.run(inner, ranks=2), apart

    assert phalanx.run(outer, ranks=2, isolate=("mine",)) == [
        ([1, 1], [1, 2]),
        ([2, 2], [1, 2]),
    ]


def test_packages_that_are_not_named_stay_shared(mine: str, tmp_path: Path) -> None:
    write(tmp_path, {"theirs.py": "SEEN = []"})
    importlib.invalidate_caches()

    def body() -> int:
        import mine
        import theirs  # type: ignore[import-not-found]
        import torch.distributed as dist

        theirs.SEEN.append(mine.V)
        dist.barrier()
        return len(theirs.SEEN)

    assert phalanx.run(body, ranks=3, isolate=("mine",)) == [3, 3, 3]
    del sys.modules["theirs"]
