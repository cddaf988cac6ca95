"""What the program's source says about messages that it takes as they come: does it matter
which of two comes first?

Used by the check of message races, for receives from any source whose answer, who sent, is
dropped. The received tensor is followed through a function that returns it, or that fills a
tensor it is given, to the one function that calls it. If the source cannot be read, or has
something that is not understood here, nothing is said, and the check stays silent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.callsite import Mark, line_at
from phalanx.source_algebra import (
    Function,
    Functions,
    Polynomial,
    State,
    UnclearError,
    called_name,
    carry_out,
    changed_in_place,
    key_of,
    symbol,
    touched,
)
from phalanx.source_text import function_around, parsed

if TYPE_CHECKING:
    from typing import TypeGuard

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FIRST, _SECOND = "(first)", "(second)"
_SHOWING = ("print", "log", "debug", "info", "warn", "write", "scalar")
MOST_CALLS = 3
"""How many functions that only receive are gone back."""


@dataclass(frozen=True)
class Received:
    """A statement behind which a variable of a function has what was received."""

    tree: ast.Module
    scope: ast.AST
    statement: ast.stmt
    name: str


def received_at(place: Mark) -> list[Received]:
    """Where the tensor of a receive at a place goes: the receive itself, or each line of the
    one function that calls the function around it. Empty if that is not sure."""
    tree = parsed(place[0].co_filename)
    if tree is None:
        return []
    found = receive_at(tree, line_at(*place))
    here = [] if found is None else [found]
    for _ in range(MOST_CALLS):
        callers = list(_handed_on(here[0])) if len(here) == 1 else []
        if not callers:
            break
        here = callers
    return here if len({id(each.scope) for each in here}) == 1 else []


def receive_at(tree: ast.Module, line: int) -> Received | None:
    """The receive at a line, if its answer, who sent, is dropped."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and node.lineno <= line <= (node.end_lineno or 0):
            call = node.value
            if isinstance(call, ast.Call) and called_name(call) == "recv":
                given = call.args[:1] or [k.value for k in call.keywords if k.arg == "tensor"]
                if given and isinstance(given[0], ast.Name):
                    return Received(tree, function_around(tree, line), node, given[0].id)
    return None


def _handed_on(received: Received) -> Iterator[Received]:
    """The lines that call a function which returns what it received and does nothing else with
    it, or which fills a tensor that it is given; nothing if one of them is no such line."""
    scope = received.scope
    if not isinstance(scope, _FUNCTIONS):
        return
    parameters = [each.arg for each in scope.args.args]
    after = _following(received)
    returns = [n for n in ast.walk(scope) if isinstance(n, ast.Return) and n.value is not None]
    is_returned = bool(returns) and all(
        key_of(n.value) == received.name for n in returns if n.value
    )
    is_filled = not returns and received.name in parameters and not after
    if not is_filled and not (is_returned and [type(n) for n in after] == [ast.Return]):
        return
    found = []
    for statement in ast.walk(received.tree):
        if not isinstance(statement, ast.stmt):
            continue
        calls = [n for n in _parts(statement) if isinstance(n, ast.Call)]
        if not any(called_name(call) == scope.name for call in calls):
            continue
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.Call) or called_name(value) != scope.name:
            return
        if is_returned:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        else:
            shift = parameters[:1] == ["self"] and isinstance(value.func, ast.Attribute)
            place = parameters.index(received.name) - shift
            target = value.args[place] if place < len(value.args) else None
        if not isinstance(target, ast.Name):
            return
        around = function_around(received.tree, statement.lineno)
        found.append(Received(received.tree, around, statement, target.id))
    yield from found


def _parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """What is in a statement, but for other statements."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        inner = ast.iter_child_nodes(node)
        waiting += [each for each in inner if not isinstance(each, ast.stmt)]


def _following(received: Received) -> list[ast.stmt]:
    """The statements behind this one, to the end of the loop around it or of the function."""
    found: list[ast.stmt] = []
    node: ast.AST = received.statement
    for block, owner in blocks_around(received):
        found += block[[id(each) for each in block].index(id(node)) + 1 :]
        if isinstance(owner, _LOOPS):
            break
        node = owner
    return found


def blocks_around(received: Received) -> list[tuple[list[ast.stmt], ast.AST]]:
    """The lists of statements around this one in its function, innermost first, and whose."""
    owners: dict[int, tuple[list[ast.stmt], ast.AST]] = {}
    for node in ast.walk(received.scope):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                owners.update({id(n): (value, node) for n in value if isinstance(n, ast.stmt)})
    found = []
    node = received.statement
    while id(node) in owners and node is not received.scope:
        found.append(owners[id(node)])
        node = owners[id(node)][1]
    return found


def find_update(received: Received) -> tuple[str, int] | None:
    """The update behind a receive that runs again and again which gives another result if two
    messages are exchanged, as `m = 0.9 * m + g` does and `m += g` does not; and its line."""
    loop = next((o for _, o in blocks_around(received) if isinstance(o, _LOOPS)), None)
    after = _following(received)
    functions = _functions_of(received.tree)
    start = _changing(received, loop, after, functions)

    def outcome(*messages: str) -> State:
        state = start
        for each in messages:
            state = carry_out(after, {**state, received.name: symbol(each)}, functions)
        return state

    try:
        once, one, other = outcome(_FIRST), outcome(_FIRST, _SECOND), outcome(_SECOND, _FIRST)
    except UnclearError:
        return None
    for key, step in once.items():
        if key == received.name or not _is_kept(key, loop, received):
            continue
        if step is None or not (_has(step, key) and _has(step, _FIRST)):
            continue
        if one.get(key) is None or other.get(key) is None or one[key] == other[key]:
            continue
        statement = _update_of(key, after, functions)
        if statement is not None and not _is_only_shown(key, statement, received.tree):
            return ast.unparse(statement), statement.lineno
    return None


def _functions_of(tree: ast.Module) -> dict[str, Function | None]:
    found: dict[str, Function | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            found[node.name] = None if node.name in found else node
    return found


def _changing(
    received: Received, loop: ast.AST | None, after: list[ast.stmt], functions: Functions
) -> State:
    """Variables that may have another value each time: unknown ones."""
    scope = received.scope
    within = loop if loop is not None else scope
    body: list[ast.stmt] = getattr(within, "body", [])
    before = [each for each in body if each not in after]
    changing = set(touched(before))
    if isinstance(within, (ast.For, ast.AsyncFor)):
        changing |= {n.id for n in ast.walk(within.target) if isinstance(n, ast.Name)}
    if loop is None and isinstance(scope, _FUNCTIONS):
        changing |= {each.arg for each in scope.args.args if each.arg != "self"}
    called = [functions.get(called_name(n)) for s in after for n in ast.walk(s) if _is_call(n)]
    updated = {_assigned(statement) for statement in after}
    updated |= {_assigned(each) for inner in called if inner is not None for each in inner.body}
    for function in ast.walk(received.tree):
        if not isinstance(function, _FUNCTIONS) or function.name == "__init__":
            continue
        if function is not scope and function not in called:
            changing |= {key for key in touched(function.body) if "." in key} - updated
    return dict.fromkeys(changing - {received.name})


def _is_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


def _update_of(key: str, after: list[ast.stmt], functions: Functions) -> ast.stmt | None:
    """The statement that gives the variable its value, also in a function that is called."""
    for statement in after:
        if _assigned(statement) == key:
            return statement
        value = getattr(statement, "value", None)
        inside = functions.get(called_name(value)) if isinstance(value, ast.Call) else None
        for inner in () if inside is None else inside.body:
            if (_assigned(inner) or "").rpartition(".")[2] == key.rpartition(".")[2]:
                return inner
    return None


def _assigned(statement: ast.stmt) -> str | None:
    """The variable that a statement gives a value of its own."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return key_of(statement.targets[0])
    if isinstance(statement, ast.AugAssign):
        return key_of(statement.target)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return changed_in_place(statement.value)
    return None


def _is_kept(key: str, loop: ast.AST | None, received: Received) -> bool:
    """Whether it has its value the next time: in a loop everything has, else what belongs to
    an object."""
    return loop is not None or ("." in key and isinstance(received.scope, _FUNCTIONS))


def _has(value: Polynomial, name: str) -> bool:
    return any(name in term for term in value)


def _is_only_shown(key: str, update: ast.stmt, tree: ast.Module) -> bool:
    """Whether whatever reads the variable elsewhere prints it or writes it to a log."""
    last = key.rpartition(".")[2]
    inside = {id(node) for node in ast.walk(update)}
    shown = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(w in called_name(node).lower() for w in _SHOWING)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        named = getattr(node, "attr", getattr(node, "id", None))
        is_read = isinstance(getattr(node, "ctx", None), ast.Load)
        if is_read and named == last and id(node) not in inside and id(node) not in shown:
            return False
    return True
