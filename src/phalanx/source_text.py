"""What the program's source says about places in it: which statement, in which branches.

Used by checks that have found something and verify it before they report it. If the source
cannot be read or parsed, the functions return None or False, and the checks stay silent.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
from collections.abc import Callable
from itertools import islice
from types import CodeType

from phalanx.callsite import Mark, line_at, real_path
from phalanx.model import Site
from phalanx.system import without_collection

_PASSED_THROUGH = (ast.With, ast.AsyncWith, ast.Try)
"""Statements whose body runs whenever they are reached."""

Block = tuple[int, str, bool]
"""A list of statements: the line of its owner, the owner's field, and whether the list runs
whenever its owner does."""


def together(one: Mark, other: Mark) -> bool:
    """Whether both are in one function and only `with` and `try` are between either place and
    their common block: a rank that passes one passes the other, unless it leaves the block."""
    if one[0] != other[0]:
        return False
    chains = [_blocks(place[0].co_filename, line_at(*place)) for place in (one, other)]
    return _are_together(*chains)


def _are_together(first: tuple[Block, ...] | None, second: tuple[Block, ...] | None) -> bool:
    if first is None or second is None:
        return False
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    return all(sure for _, _, sure in (*first[common:], *second[common:]))


def expression(place: Mark) -> str | None:
    """The text of the call at a place; the whole line where Python keeps no columns."""
    code, offset = place
    lines = linecache.getlines(code.co_filename)
    line = line_at(code, offset)
    if not 0 < line <= len(lines):
        return None
    return _segment(code, offset, lines) or lines[line - 1].strip() or None


def _segment(code: CodeType, offset: int, lines: list[str]) -> str | None:
    positions = getattr(code, "co_positions", None)  # Python 3.11
    if positions is None:
        return None
    found = next(islice(positions(), offset // 2, None), None)
    if found is None or None in found:
        return None
    first, last, start, end = found
    chosen = [line.encode() for line in lines[first - 1 : last]]
    if not chosen:
        return None
    chosen[-1] = chosen[-1][:end]
    chosen[0] = chosen[0][start:]
    return " ".join(b"".join(chosen).decode(errors="replace").split())


def _blocks(filename: str, line: int) -> tuple[Block, ...] | None:
    """The lists of statements around a line, outermost first."""
    node: ast.AST | None = parsed(filename)
    if node is None:
        return None
    found: list[Block] = []
    while node is not None:
        owner = node
        field, node = _statement_at(owner, line)
        if node is not None:
            sure = isinstance(owner, _PASSED_THROUGH) and field in ("body", "finalbody")
            found.append((getattr(owner, "lineno", 0), field, sure))
    return tuple(found)


def _statement_at(node: ast.AST, line: int) -> tuple[str, ast.stmt | None]:
    for field, value in ast.iter_fields(node):
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, ast.stmt):
                if item.lineno <= line <= (item.end_lineno or item.lineno):
                    return field, item
            elif isinstance(item, (ast.ExceptHandler, ast.match_case)):
                _, inner = _statement_at(item, line)
                if inner is not None:
                    return f"{field}[{index}]", inner
    return "", None


def tree_of_text(text: str) -> ast.Module | None:
    """Its syntax tree; None if it has none.

    Python 3.11 counts for all threads together how deep such a tree is. If garbage is collected
    while one is made, another thread may begin another one, and both fail with a `SystemError`.
    """
    try:
        return without_collection(lambda: ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, SystemError):
        return None


@functools.lru_cache(maxsize=8)
def _tree(lines: tuple[str, ...]) -> ast.Module | None:
    return tree_of_text("".join(lines)) if lines else None


def parsed(file: str) -> ast.Module | None:
    """The file's syntax tree; None if it cannot be read."""
    return _tree(tuple(lines_of(file)))


def is_here(site: Site) -> bool:
    """Whether a site's file can be read here, and is the one that it was made from: a path that
    a report shows may lead to another file of the same name."""
    lines = lines_of(site.file)
    return site.line <= len(lines) and lines[site.line - 1].strip() == site.source != ""


def lines_of(file: str) -> list[str]:
    """The lines of a file that a report names, which may be relative to the current folder. A
    file of that name in another folder may have been read before."""
    path = real_path(file)
    linecache.checkcache(path)
    return linecache.getlines(path)


def is_called_from_several(file: str, function: str) -> bool:
    """Whether several lines of a file call its function of that name."""
    tree = parsed(file)
    lines = {
        node.lineno
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Call) and _called(node) == function
    }
    return len(lines) > 1


def only_call_on(near: Site, receiver: str, method: str) -> Site | None:
    """The line in the file of a site that calls a method of what is named so, if it is one."""
    tree = parsed(near.file) if is_here(near) else None
    if tree is None:
        return None
    lines = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and ast.unparse(node.func.value) == receiver
    }
    return _only_line(near.file, tree, lines)


def only_call_of(near: Site, function: str) -> Site | None:
    """The line in the file of a site that calls what is named so, if it is one."""
    tree = parsed(near.file) if is_here(near) else None
    if tree is None:
        return None
    lines = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) == function
    }
    return _only_line(near.file, tree, lines)


def _only_line(file: str, tree: ast.Module, lines: set[int]) -> Site | None:
    if len(lines) != 1:
        return None
    line = lines.pop()
    around = [
        (node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    _, function = max(around, default=(0, "<module>"))
    return Site(file, line, function, lines_of(file)[line - 1].strip())


def _called(node: ast.Call) -> str | None:
    name = getattr(node.func, "attr", getattr(node.func, "id", None))
    return name if isinstance(name, str) else None


def branch_by_rank(place: Mark) -> int | None:
    """The line of an `if` around a place, in the same function, that tests the rank: a name in
    the test says so, as in `rank == 0` and `dist.get_rank() > 0`."""
    code, offset = place
    return _branch(code.co_filename, line_at(code, offset), code.co_firstlineno)


def branch_at_line(file: str, line: int) -> int | None:
    """The same for a line of a file, if that is here."""
    tree = parsed(file)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        node.lineno
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, functions) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return _branch(file, line, max(around, default=0))


def is_added_branch(file: str, line: int) -> bool:
    """Whether the `if` at a line has no `else`, and whoever is in it goes on behind it."""
    tree = parsed(file)
    leaves = (ast.Return, ast.Continue, ast.Break, ast.Raise)
    return any(
        isinstance(node, ast.If)
        and node.lineno == line
        and not node.orelse
        and not any(isinstance(each, leaves) for each in ast.walk(node))
        for node in (ast.walk(tree) if tree is not None else ())
    )


def branch_around_word(file: str, word: str) -> int | None:
    """The line of an `if` that tests the rank and only adds to what all ranks do, where every
    place of a file that has this word, quoted, is in such a branch; the first one."""
    tree = parsed(file)
    lines = {
        node.lineno
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Constant) and node.value == word
    }
    found = [branch_at_line(file, line) for line in lines]
    known = [line for line in found if line is not None and is_added_branch(file, line)]
    return min(known) if known and len(known) == len(found) else None


def _branch(file: str, line: int, first: int) -> int | None:
    tree = parsed(file)
    if tree is None:
        return None
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and first <= node.lineno
        and node.test.end_lineno is not None
        and node.test.end_lineno < line <= (node.end_lineno or 0)
        and asks_for_rank(node.test, tree, file)
    ]
    return max(found, default=None)


_RANK_TESTS = frozenset(
    {
        "is_main_process",
        "is_local_main_process",
        "is_last_process",
        "is_global_zero",
        "is_world_process_zero",
        "is_local_process_zero",
        "is_master",
        "is_master_process",
        "is_primary",
        "main_process",
        "master_process",
        "process_index",
        "local_process_index",
    }
)
"""What libraries and programs call the rank or a test of it, besides names with `rank`."""

_INDIRECT = 2
"""Through so many functions, properties and variables a test of the rank is followed."""

_FOLDERS = 3
"""So many folders upwards from a file a module that it imports is looked for."""


def _is_rank(node: ast.AST) -> bool:
    name = _name_in(node)
    if name is None:
        return False
    words = name.lower().rstrip("0123456789").split("_")
    return "rank" in words or name.lower() in _RANK_TESTS


def _name_in(node: ast.AST) -> str | None:
    name = getattr(node, "id", None) or getattr(node, "attr", None)
    return name if isinstance(name, str) else None


def asks_for_rank(test: ast.AST, tree: ast.Module, file: str) -> bool:
    """Whether a condition tests the rank: a name in it says so, or the file shows that what is
    named so is the rank or a test of it."""
    if any(_is_rank(each) for each in ast.walk(test)):
        return True
    named = [each for each in ast.walk(test) if _name_in(each)]
    return any(_stands_for_rank(each, tree, file, _INDIRECT) for each in named)


def _stands_for_rank(named: ast.AST, tree: ast.Module, file: str, steps: int) -> bool:
    """Whether all that is returned or assigned under this name is the rank or a test of it."""
    name = _name_in(named)
    if name is None or not steps:
        return False
    values, there, where = _meanings(name, tree, file)
    if not values and isinstance(named, ast.Attribute):
        values, there, where = _meanings_in_module(named, tree, file)
    return bool(values) and all(_is_of_rank(each, there, where, steps - 1) for each in values)


def _is_of_rank(value: ast.expr, tree: ast.Module, file: str, steps: int) -> bool:
    """Whether an expression is the rank or a test of it. What a function makes of the rank that
    it is given may be anything."""

    def look(*parts: ast.expr) -> bool:
        return any(_is_of_rank(each, tree, file, steps) for each in parts)

    if isinstance(value, ast.Compare):
        return look(value.left, *value.comparators)
    if isinstance(value, ast.BoolOp):
        return look(*value.values)
    if isinstance(value, ast.UnaryOp):
        return look(value.operand)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mod, ast.FloorDiv)):
        return look(value.left)
    if isinstance(value, ast.Subscript):
        return _names_variable(value.slice)
    if isinstance(value, ast.Call):
        given = value.args[:1]
        if _name_in(value.func) in ("int", "bool"):
            return look(*given)
        if _name_in(value.func) in ("get", "getenv") and given:
            return _names_variable(given[0])
        value = value.func
    return _is_rank(value) or _stands_for_rank(value, tree, file, steps)


def _names_variable(node: ast.expr) -> bool:
    """`"RANK"` or `"LOCAL_RANK"`, of the environment."""
    name = node.value if isinstance(node, ast.Constant) else None
    return isinstance(name, str) and name.split("_")[-1] == "RANK"


def _meanings(
    name: str, tree: ast.Module, file: str, *, follows: bool = True
) -> tuple[list[ast.expr], ast.Module, str]:
    """What functions of this name return and what is assigned to it, in the file or in the one
    that it is imported from; and that file. Constants do not count: a function that tests the
    rank answers so where there is no group."""
    values: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            inside = [each for each in ast.walk(node) if isinstance(each, ast.Return)]
            values += [each.value for each in inside if each.value is not None]
        elif isinstance(node, ast.Assign) and any(_name_in(t) == name for t in node.targets):
            values.append(node.value)
    values = [each for each in values if not isinstance(each, ast.Constant)]
    if values or not follows:
        return values, tree, file
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
            return _meanings_there(name, node.module or "", tree, file)
    return [], tree, file


def _meanings_in_module(
    named: ast.Attribute, tree: ast.Module, file: str
) -> tuple[list[ast.expr], ast.Module, str]:
    """The same for `team.is_chief`, where `team` is a module that the file imports."""
    owner = _name_in(named.value)
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for each in node.names:
            if owner == (each.asname or each.name.rpartition(".")[2]):
                start = getattr(node, "module", None)
                module = f"{start}.{each.name}" if start else each.name
                return _meanings_there(named.attr, module, tree, file)
    return [], tree, file


def _meanings_there(
    name: str, module: str, tree: ast.Module, file: str
) -> tuple[list[ast.expr], ast.Module, str]:
    where = _file_of(module, file)
    there = parsed(where) if where is not None else None
    if where is None or there is None:
        return [], tree, file
    return _meanings(name, there, where, follows=False)


def _file_of(module: str, file: str) -> str | None:
    """Of a module that is imported, if it is near."""
    parts = module.split(".")
    folder = os.path.dirname(real_path(file))
    for _ in range(_FOLDERS):
        path = os.path.join(folder, *parts)
        for each in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.exists(each):
                return each
        folder = os.path.join(folder, os.pardir)
    return None


_PLAIN = frozenset({"float", "int", "len", "list", "sum", "tuple"})
_PICKERS = frozenset({"get", "pop", "setdefault"})
_STEPS = 3
"""How many assignments are followed back."""


def picks(place: Mark, name: str) -> bool:
    """Whether what is given to the call at a place is picked by the variable of that name:
    `table[name]`, `table.get(name)`, `getattr(it, name)`, a variable that the same loop binds
    together with it, or a tensor made of that."""
    call, tree = _call_at(place)
    if call is None or tree is None:
        return False
    code, line = place[0], line_at(*place)
    known: dict[str, ast.expr | None] = {**_assigned_before(tree, code.co_firstlineno, line)}
    known.update(dict.fromkeys(_bound_with(tree, line, name)))
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(_is_picked(each, name, known, _STEPS) for each in given)


def gives_group_rank(place: Mark) -> bool:
    """Whether the call at a place gives as `src` or `dst`, ranks of the world, what
    `get_group_rank` said for the group that it is called on."""
    call, tree = _call_at(place)
    if call is None or tree is None:
        return False
    named = {each.arg: each.value for each in call.keywords}
    group = named.get("group")
    given = named.get("src", named.get("dst"))
    if given is None and len(call.args) > 1:
        given = call.args[1]
    if group is None and len(call.args) > 2:
        group = call.args[2]
    if isinstance(given, ast.Name):
        given = _only_value(tree, place, given.id)
    if group is None or not isinstance(given, ast.Call) or not given.args:
        return False
    function = given.func
    called = getattr(function, "attr", getattr(function, "id", None))
    return called == "get_group_rank" and ast.dump(given.args[0]) == ast.dump(group)


def _only_value(tree: ast.Module, place: Mark, name: str) -> ast.expr | None:
    """What a variable of the function is assigned, if that happens once."""
    first, line = place[0].co_firstlineno, line_at(*place)
    stores = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id == name
        and first <= node.lineno <= line
    ]
    return _assigned_before(tree, first, line).get(name) if len(stores) == 1 else None


def _call_at(place: Mark) -> tuple[ast.Call | None, ast.Module | None]:
    """The outermost call that begins at the line of a place, else one that goes through it."""
    code, offset = place
    tree = parsed(code.co_filename)
    line = line_at(code, offset)
    if tree is None:
        return None, None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    calls.sort(key=lambda node: (node.lineno != line, node.col_offset))
    return (calls[0] if calls else None), tree


def _assigned_before(tree: ast.Module, first: int, line: int) -> dict[str, ast.expr]:
    """The last values, of plain names, that are assigned between two lines."""
    found: dict[str, ast.expr] = {}
    assignments = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and first <= node.lineno < line
    ]
    for node in sorted(assignments, key=lambda node: node.lineno):
        for target in node.targets:
            if isinstance(target, ast.Name):
                found[target.id] = node.value
    return found


def _bound_with(tree: ast.Module, line: int, name: str) -> list[str]:
    """What loops around a line bind side by side with a variable, but for a counter."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)):
            last = getattr(node, "end_lineno", None) or line
            if not getattr(node, "lineno", line) <= line <= last:
                continue
            made_by = node.iter.func if isinstance(node.iter, ast.Call) else node.iter
            is_counted = _is_name(made_by, "enumerate")
            for part in ast.walk(node.target):
                if isinstance(part, ast.Tuple) and not (is_counted and part is node.target):
                    names = [each.id for each in part.elts if isinstance(each, ast.Name)]
                    found += [each for each in names if name in names and each != name]
    return found


def _is_picked(
    node: ast.expr, name: str, known: dict[str, ast.expr | None], steps: int
) -> bool:
    """In `known`, None stands for what is picked."""

    def look(*nodes: ast.expr) -> bool:
        return any(_is_picked(each, name, known, steps) for each in nodes)

    if isinstance(node, ast.Name):
        if node.id not in known or not steps:
            return False
        value = known[node.id]
        return value is None or _is_picked(value, name, known, steps - 1)
    if isinstance(node, ast.Subscript):
        return _is_name(node.slice, name) or look(node.value)
    if isinstance(node, ast.Attribute):
        return look(node.value)
    if isinstance(node, (ast.List, ast.Tuple)):
        return look(*node.elts)
    if isinstance(node, ast.BinOp):
        return look(node.left, node.right)
    return isinstance(node, ast.Call) and _call_picks(node, name, look)


def _call_picks(node: ast.Call, name: str, look: Callable[..., bool]) -> bool:
    """Methods of what was picked, and what torch and Python make of it; what other functions
    make of it may be anything."""
    function = node.func
    by_name = any(_is_name(each, name) for each in node.args)
    if isinstance(function, ast.Attribute):
        is_torch = isinstance(function.value, ast.Name) and function.value.id == "torch"
        picked = by_name and function.attr in _PICKERS
        return picked or (look(*node.args) if is_torch else look(function.value))
    if isinstance(function, ast.Name):
        if function.id == "getattr":
            return by_name
        return function.id in _PLAIN and look(*node.args)
    return False


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def function_around(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function that has a line, or the module."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, functions) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=tree)


def lines_together(file: str, one: int, other: int) -> bool:
    """What `together` says, for two lines of one function."""
    return _are_together(_blocks(file, one), _blocks(file, other))
