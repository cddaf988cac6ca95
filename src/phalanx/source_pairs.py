"""What the program's source says about messages that it takes as they come and pairs with
something: a list in the order of arrival with names that were written down before, or a message
of one tag with one of another.

Used by the check of message races, for receives from any source whose answer, who sent, is
dropped. If the source cannot be read, or has something that is not understood here, nothing is
said, and the check stays silent.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from phalanx.callsite import Mark, line_at
from phalanx.source_algebra import called_name
from phalanx.source_text import function_around, parsed
from phalanx.source_updates import Received, blocks_around, receive_at

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SAME = frozenset({"clone", "cpu", "detach", "float", "int", "item", "tolist"})
_LOOKS = frozenset({"len", "print"})
_FOR_THE_EYE = re.compile(r"colou?r|style|marker|symbol|shade|dash", re.IGNORECASE)
"""Names of lists of which it does not matter who gets what."""

Pairing = tuple[str, int]
"""What the program makes of the pairs, and its line."""


def find_pairing(place: Mark) -> Pairing | None:
    """For a receive at a place that runs again and again: what it is paired with by arrival."""
    tree = parsed(place[0].co_filename)
    received = None if tree is None else receive_at(tree, line_at(*place))
    if received is None:
        return None
    return _with_names(received) or _with_another_message(received)


# -- a list in the order of arrival, and a list of constants ---------------------------------


def _with_names(received: Received) -> Pairing | None:
    """A loop appends what it receives to a list, and `zip` puts a list of constants beside."""
    loop = next((o for _, o in blocks_around(received) if isinstance(o, _LOOPS)), None)
    scope = received.scope
    if loop is None:
        return None
    kept = {_appended_to(node, received.name) for node in ast.walk(loop)} - {None}
    for name in sorted(map(str, kept)):
        end = loop.end_lineno or loop.lineno
        if len(_loads(loop, name)) != 1:
            continue  # something else is done with it on the way
        uses = [n for n in _loads(scope, name) if n.lineno > end]
        returned = [n for n in ast.walk(scope) if isinstance(n, ast.Return)]
        if len(uses) == 1 and any(n.value is uses[0] for n in returned):
            taken = _taken_from(received.tree, scope)
            if taken is not None:
                return _zipped(received.tree, *taken)
        elif all(n.value is None for n in returned):
            return _zipped(received.tree, scope, name, end)
    return None


def _appended_to(node: ast.AST, name: str) -> str | None:
    """The list that this appends the variable to, or a number of it."""
    if not isinstance(node, ast.Call) or called_name(node) != "append" or len(node.args) != 1:
        return None
    given = node.args[0]
    while not isinstance(given, ast.Name):
        if isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Constant):
            given = given.value
        elif not isinstance(given, ast.Call) or called_name(given) not in _SAME:
            return None
        elif isinstance(given.func, ast.Attribute) and not given.args:
            given = given.func.value
        elif isinstance(given.func, ast.Name) and len(given.args) == 1:
            given = given.args[0]
        else:
            return None
    owner = getattr(node.func, "value", None)
    return owner.id if given.id == name and isinstance(owner, ast.Name) else None


def _taken_from(tree: ast.Module, function: ast.AST) -> tuple[ast.AST, str, int] | None:
    """The function that calls this one, at one place only; the variable that has the list there
    and the line."""
    if not isinstance(function, _FUNCTIONS):
        return None
    alike = [n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS) and n.name == function.name]
    named = [n for n in ast.walk(tree) if _name_of(n) == function.name]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = node.targets[0]
            if called_name(node.value) == function.name and isinstance(target, ast.Name):
                around = function_around(tree, node.lineno)
                is_sole = len(alike) == len(named) == len(node.targets) == 1
                return (around, target.id, node.lineno) if is_sole else None
    return None


def _name_of(node: ast.AST) -> str | None:
    return getattr(node, "id", getattr(node, "attr", None))


def _zipped(tree: ast.Module, scope: ast.AST, name: str, line: int) -> Pairing | None:
    """What is made of `zip` of the list and of constants; None if anything else is done with
    the list, which may give it another order."""
    writes = [
        n
        for n in ast.walk(scope)
        if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
    ]
    calls = [n for n in ast.walk(scope) if isinstance(n, ast.Call) and n.lineno > line]
    looks = {id(given) for n in calls if called_name(n) in _LOOKS for given in n.args}
    zips = [n for n in calls if called_name(n) == "zip"]
    given = {id(each) for n in zips for each in n.args}
    uses = [n for n in _loads(scope, name) if n.lineno > line]
    if any(n.lineno > line for n in writes) or any(id(n) not in looks | given for n in uses):
        return None
    for node in zips:
        names = [each.id if isinstance(each, ast.Name) else "" for each in node.args]
        if len(names) == 2 and name in names:
            other = names[1 - names.index(name)]
            if _is_list_of_constants(tree, scope, other):
                found = _pairs_of(scope, node)
                if found is not None:
                    return found
    return None


def _is_list_of_constants(tree: ast.Module, scope: ast.AST, name: str) -> bool:
    """Whether the variable has but one value in the file, which nothing changes."""
    if not name or _FOR_THE_EYE.search(name):
        return False
    values: list[ast.expr | None] = []
    for node in ast.walk(tree):
        is_write = isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        if is_write and getattr(node, "id", "") == name:
            values.append(None)
        elif isinstance(node, ast.arg) and node.arg == name:
            return False
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            is_read = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
            if _name_of(node.value) == name and not is_read:
                return False
    for owner in (tree,) if scope is tree else (tree, scope):
        for statement in getattr(owner, "body", ()):
            if isinstance(statement, ast.Assign) and _name_of(statement.targets[0]) == name:
                values.append(statement.value)
    if len(values) != 2:  # its name, and its value
        return False
    value = values[1]
    if not isinstance(value, (ast.List, ast.Tuple)) or len(value.elts) < 2:
        return False
    return all(isinstance(each, ast.Constant) for each in value.elts)


def _pairs_of(scope: ast.AST, zipped: ast.Call) -> Pairing | None:
    """The expression or statement that has both parts of a pair."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and called_name(node) == "dict":
            if node.args[:1] == [zipped] and _is_looked_up(scope, node):
                return ast.unparse(node), node.lineno
        elif isinstance(node, _COMPREHENSIONS) and len(node.generators) == 1:
            names = _pair(node.generators[0].target)
            if node.generators[0].iter is zipped and names is not None:
                if isinstance(node, ast.DictComp):
                    is_pair = names <= _names(node.key) | _names(node.value)
                    if is_pair and _is_looked_up(scope, node):
                        return ast.unparse(node), node.lineno
                elif _tells_pair(node.elt, names):
                    return ast.unparse(node), node.lineno
        elif isinstance(node, ast.For) and node.iter is zipped:
            names = _pair(node.target)
            for statement in ast.walk(node):
                is_simple = isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign))
                if is_simple and names is not None and _tells_pair(statement, names):
                    return ast.unparse(statement), node.lineno
    return None


def _pair(target: ast.AST) -> set[str] | None:
    elements = getattr(target, "elts", ())
    names = {each.id for each in elements if isinstance(each, ast.Name)}
    return names if len(names) == len(elements) == 2 else None


def _tells_pair(node: ast.AST, names: set[str]) -> bool:
    """Whether both are in it, and not only in a sum, whose terms may be exchanged."""
    if not names <= _names(node):
        return False
    inner = node
    while True:
        smaller = [each for each in ast.iter_child_nodes(inner) if names <= _names(each)]
        if not smaller:
            break
        inner = smaller[0]
    if isinstance(inner, ast.AugAssign):
        return False
    return not (isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Add, ast.Sub)))


def _is_looked_up(scope: ast.AST, made: ast.AST) -> bool:
    """Whether the dict is used with its keys: its values alone have no order to speak of."""
    name = None
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.value is made:
            name = _name_of(node.targets[0])
        elif isinstance(node, ast.Attribute) and node.value is made:
            return node.attr != "values"
    if name is None:
        return True
    uses = {id(n) for n in _loads(scope, name)}
    alone = {
        id(n.value)
        for n in ast.walk(scope)
        if isinstance(n, ast.Attribute) and n.attr == "values"
    }
    return bool(uses - alone)


# -- two messages with tags of their own ------------------------------------------------------


def _with_another_message(received: Received) -> Pairing | None:
    """The block has another receive from any source before this one, with another tag; and an
    expression has what came by both."""
    block = blocks_around(received)[0][0]
    at = next(place for place, each in enumerate(block) if each is received.statement)
    own = _tag_of(received.statement)
    after = block[at + 1 :]
    for statement in block[:at]:
        first = _any_source(statement)
        if first is None or own is None or first.name == received.name:
            continue
        tag = _tag_of(statement)
        if tag is None or ast.unparse(tag) == ast.unparse(own):
            continue
        between = block[block.index(statement) + 1 : at]
        ones = _made_of({first.name, *_targets(statement)}, [*between, *after])
        others = _made_of({received.name}, after)
        both = ones & others
        if ones & _names(own) or _is_asked(after, ones - both, others - both):
            continue
        found = _paired(after, ones - both, others - both)
        if found is not None:
            return found
    return None


def _any_source(statement: ast.stmt) -> Received | None:
    """A receive that is given a tensor and no source; its answer may be kept."""
    call = getattr(statement, "value", None)
    if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(call, ast.Call):
        return None
    if called_name(call) != "recv" or len(call.args) != 1:
        return None
    if any(each.arg in (None, "src", "group_src") for each in call.keywords):
        return None
    tensor = call.args[0]
    if not isinstance(tensor, ast.Name):
        return None
    return Received(ast.Module([], []), statement, statement, tensor.id)


def _tag_of(statement: ast.stmt) -> ast.expr | None:
    call = getattr(statement, "value", None)
    keywords = call.keywords if isinstance(call, ast.Call) else ()
    return next((each.value for each in keywords if each.arg == "tag"), None)


def _targets(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {n.id for each in targets for n in ast.walk(each) if isinstance(n, ast.Name)}


def _made_of(names: set[str], statements: Sequence[ast.stmt]) -> set[str]:
    """These variables, and those that assignments make of them alone: a sum over rounds is
    another matter."""
    found = set(names)
    for statement in statements:
        if isinstance(statement, ast.Assign) and _names(statement.value) & found:
            targets = _targets(statement)
            is_plain = all(isinstance(n, (ast.Name, ast.Tuple)) for n in statement.targets)
            if is_plain and not targets & _names(statement.value):
                found |= targets
    return found


def _is_asked(statements: Sequence[ast.stmt], ones: set[str], others: set[str]) -> bool:
    """Whether a branch asks if the two belong together."""
    return any(
        isinstance(node, (ast.If, ast.While, ast.IfExp))
        and _names(node.test) & ones
        and _names(node.test) & others
        for statement in statements
        for node in ast.walk(statement)
    )


def _paired(statements: Sequence[ast.stmt], ones: set[str], others: set[str]) -> Pairing | None:
    for statement in statements:
        for node in ast.walk(statement):
            for left, right in _sides(node):
                one, other = _names(left), _names(right)
                if (one & ones and other & others) or (one & others and other & ones):
                    return ast.unparse(node), statement.lineno
    return None


def _sides(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The two sides of what depends on what belongs together: a comparison, a product, a value
    and the place where it is kept."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node.left, node.comparators[0]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.MatMult)):
        yield node.left, node.right
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Subscript):
                yield target.slice, node.value


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _loads(scope: ast.AST, name: str) -> list[ast.Name]:
    return [
        n
        for n in ast.walk(scope)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]
