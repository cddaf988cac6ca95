"""Which packages a rank imports for itself: packages given by name, and in scripts also the
program's own and libraries that keep a process's state in their modules (`known_libraries.py`).

Used by the doors, which check names here, and by `importing.py`. Must never import torch: the
command line reads its options before it loads torch.
"""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any

from phalanx.callsite import is_own_file
from phalanx.emulation.modules.known_libraries import is_known
from phalanx.errors import UsageError

MAIN = "__main__"
MP_MAIN = "__mp_main__"
"""multiprocessing's name for the script's module: what workers send back is looked up there."""

_COMMON = """
torch torchgen functorch triton numpy phalanx sympy mpmath networkx jinja2 markupsafe filelock
fsspec typing_extensions setuptools pkg_resources _distutils_hack pytest _pytest pluggy
"""
COMMON = frozenset(_COMMON.split())
"""Packages that are shared wherever they are installed: torch, what it imports, Phalanx, and
test runners."""


class IsolationRule:
    """Decides by the name of the top package. A decision holds for the whole run."""

    def __init__(
        self, named: Iterable[str] = (), *, script: bool = False, shared: Iterable[str] = ()
    ) -> None:
        self.named = tuple(named)
        self._is_script = script
        self.registered: Any = None
        """What its ranks have registered with torch; see `registrations.py`."""
        self._shared = frozenset(shared)
        self._by_place = script and "all" not in self._shared
        self._decided = dict.fromkeys(self._shared, False)
        self._decided.update(dict.fromkeys(self.named, True))
        if script:
            self._decided[MAIN] = self._decided[MP_MAIN] = True

    def anew(self) -> IsolationRule:
        """One for the same options and another run."""
        return IsolationRule(self.named, script=self._is_script, shared=self._shared)

    def covers(self, name: str) -> bool:
        """Whether a module of this name is each rank's own, as far as decided."""
        return self._decided.get(name.partition(".")[0], False)

    def tops(self) -> list[str]:
        """The packages that are each rank's own, as far as decided."""
        return [top for top, own in self._decided.items() if own]

    def decide(self, top: str) -> bool:
        """The same for a top package, which is looked for if it is new."""
        found = self._decided.get(top)
        if found is None:
            found = self._decided[top] = self._by_place and _is_apart(top)
        return found

    def adopt(self, top: str) -> bool:
        """The same for one that the program puts into `sys.modules` itself. What was looked for
        and is installed stays shared."""
        if not self._by_place or top in self._shared or _is_common(top):
            return False
        if self._decided.get(top) is False and find_spec(top) is not None:
            return False
        self._decided[top] = True
        return True


def _is_common(top: str) -> bool:
    return top in COMMON or top in sys.builtin_module_names or top in sys.stdlib_module_names


def _is_apart(top: str) -> bool:
    """The packages that a script's ranks import for themselves by default."""
    if _is_common(top):
        return False
    return is_programs_own(top) or (is_known(top) and find_spec(top) is not None)


def is_programs_own(top: str) -> bool:
    """Whether this package lies outside of Python and of what was installed into it."""
    if _is_common(top):
        return False
    spec = find_spec(top)
    places = [] if spec is None else list(_places(spec))
    return bool(places) and not any(is_installed(place) for place in places)


def find_spec(name: str, path: Any = None, target: Any = None, *, but: Any = None) -> Any:
    """The spec that Python's finders return for a module, without an import. `but` is not
    asked."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None or finder is but or getattr(finder, "isolates", False):
            continue
        spec = find(name, path, target)
        if spec is not None:
            return spec
    return None


def _places(spec: ModuleSpec) -> Iterator[str]:
    """Its file, or the folders of a package without one."""
    if spec.has_location and spec.origin:
        yield os.path.realpath(spec.origin)
    elif spec.submodule_search_locations is not None:
        yield from map(os.path.realpath, spec.submodule_search_locations)


def is_installed(path: str) -> bool:
    """Whether the file belongs to Python or to a package installed into it."""
    if is_own_file(path) or any(part in path for part in _INSTALLED_PARTS):
        return True
    return path.startswith(_installed_roots())


_INSTALLED_PARTS = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")
)


@cache
def _installed_roots() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_paths().get(name, "") for name in names]
    found += [os.path.dirname(os.__file__)]
    if hasattr(site, "getsitepackages"):  # not in some virtual environments
        found += [*site.getsitepackages(), site.getusersitepackages()]
    real = {os.path.realpath(path) for path in found if path}
    return tuple(os.path.join(path, "") for path in real)


def script_rule(
    isolate: Iterable[str], share: Iterable[str], search_path: str
) -> IsolationRule:
    """The rule for the options of the command line; each may be given several times: `a,b`."""
    sys.path.insert(0, search_path)
    try:
        named, shared = _parsed("--isolate", isolate), _parsed("--share", share)
    finally:
        sys.path.remove(search_path)
    both = sorted(set(named) & set(shared))
    if both:
        raise UsageError(f"--isolate and --share both name {both[0]}: choose one")
    return IsolationRule(named, script=True, shared=shared)


def _parsed(option: str, given: Iterable[str]) -> tuple[str, ...]:
    names = [name.strip() for part in given for name in part.split(",")]
    for name in names:
        if name == "all" and option == "--isolate":
            raise UsageError(
                "--isolate all: torch and the like exist once; name packages, e.g. --isolate "
                "megatron (the script's own are isolated without it)"
            )
        if name != "all":
            check_isolate((name,), where=f"{option} {name}".rstrip())
    return tuple(dict.fromkeys(names))


def check_isolate(given: Any, *, where: str | None = None) -> tuple[str, ...]:
    """The names of packages to isolate. Raises `UsageError` for a name that cannot be isolated.
    They are searched in the caller's `sys.path`, which includes a script's own folder."""
    shown = where or f"isolate={given!r}"
    if isinstance(given, str):
        raise UsageError(f"{shown}: give a tuple of packages, e.g. isolate=({given!r},)")
    try:
        names = tuple(given)
    except TypeError:
        raise UsageError(f"{shown}: give a tuple of packages, e.g. ('megatron',)") from None
    for name in names:
        _check_name(name, shown)
        _check_package(name, shown)
    return names


def _check_name(name: Any, shown: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise UsageError(f"{shown}: {name!r} is no name of a package; write e.g. megatron")
    top, dot, _ = name.partition(".")
    if dot:
        raise UsageError(
            f"{shown}: {name} is inside {top}, which all ranks would share; write {top}"
        )


def _check_package(name: str, shown: str) -> None:
    if name == MAIN:
        raise UsageError(f"{shown}: __main__ is each rank's own in scripts, shared elsewhere")
    if _is_common(name):
        raise UsageError(
            f"{shown}: {name} is shared by all ranks and cannot be isolated; name packages "
            "of your own, or libraries in Python that keep state in their modules"
        )
    if name not in sys.modules and find_spec(name) is None:
        raise UsageError(
            f"{shown}: no package named {name!r} (looked in {os.getcwd()} and sys.path)"
        )
