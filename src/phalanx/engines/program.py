"""Find a script or module and compile it, for the ranks to execute.

Used by the command line and by the engines. Must never import torch: the torchrun engine
checks the program before it starts the processes that import torch.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType
from typing import Any

from phalanx.callsite import remember_program
from phalanx.errors import UsageError


@dataclass(frozen=True)
class Program:
    """What to execute: compiled code, where it came from and its arguments."""

    code: CodeType
    path: str
    argv: tuple[str, ...]
    search_path: str
    spec: ModuleSpec | None = None
    imported: frozenset[str] = frozenset()
    """Modules that were imported in order to find it. The ranks import them again."""

    @property
    def is_pytest(self) -> bool:
        """Whether it is pytest, whose exit status says what became of the tests."""
        if self.spec is not None:
            return self.spec.name.partition(".")[0] in ("pytest", "_pytest")
        return os.path.basename(self.path) in ("pytest", "py.test")

    def names_of_main(self) -> dict[str, Any]:
        """What Python itself puts into `__main__` before it executes the program."""
        file = os.path.abspath(self.path)
        names: dict[str, Any] = {"__file__": file, "__builtins__": builtins}
        if sys.version_info < (3, 14):  # since then there are none until somebody asks
            names["__annotations__"] = {}
        spec = self.spec
        if spec is None:
            names["__loader__"] = SourceFileLoader("__main__", file)
            names["__cached__"] = None
        else:
            names["__spec__"], names["__package__"] = spec, spec.parent
            names["__loader__"], names["__cached__"] = spec.loader, spec.cached
        return names


def load_script(path: str, args: list[str]) -> Program:
    """Read and compile a script file."""
    if os.path.isdir(path):
        raise UsageError(f"{path!r} is a directory; name a script, or a module with -m")
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), os.path.abspath(path), "exec")
    except FileNotFoundError:
        hint = (
            "" if path.endswith(".py") else "; did you mean a module? Then write -m before it"
        )
        raise UsageError(f"no such script: {path!r} (looked in {os.getcwd()}){hint}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror}") from None
    remember_program(path)
    return Program(code, path, (path, *args), os.path.dirname(os.path.abspath(path)))


def load_module(name: str, args: list[str]) -> Program:
    """Find and compile a module, or a package's `__main__`."""
    if name.endswith(".py"):  # looking for it would import, and so run, the script
        raise UsageError(f"-m {name}: write -m {name[:-3]}, or the script's path without -m")
    before = set(sys.modules)
    sys.path.insert(0, os.getcwd())
    try:
        spec, code = _found(name)
    except BaseException:
        for each in set(sys.modules) - before:
            if each.partition(".")[0] == name.partition(".")[0]:
                del sys.modules[each]
        raise
    finally:
        sys.path.remove(os.getcwd())
    path = str(spec.origin)
    imported = frozenset(set(sys.modules) - before)
    return Program(code, path, (path, *args), os.getcwd(), spec, imported)


def _found(name: str) -> tuple[ModuleSpec, CodeType]:
    spec = _find_spec(name)
    code = spec.loader.get_code(spec.name) if spec and spec.loader else None  # type: ignore[attr-defined]
    if spec is None or code is None or spec.origin is None:
        raise UsageError(f"no module named {name!r} (looked in {os.getcwd()} and sys.path)")
    return spec, code


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except SyntaxError:
        raise
    except Exception as error:
        if _is_about(error, name):
            return None
        raise UsageError(
            f"cannot look for module {name!r}: importing the packages it is in raised "
            f"{type(error).__name__}: {error}"
        ) from None
    return spec


def _is_about(error: Exception, name: str) -> bool:
    """Whether the error is about the module itself, or a package that it is in."""
    if isinstance(error, ModuleNotFoundError):
        return f"{name}.".startswith(f"{error.name}.")
    return isinstance(error, ValueError)
