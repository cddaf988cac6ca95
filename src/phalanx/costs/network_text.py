"""Networks as text: `--network 'alpha_beta(latency=5e-6, bandwidth=12e9)'`.

The text is the Python call that makes the network. It is read as data: names of this folder
and literals, nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from phalanx.costs.cluster_network import cluster, dgx_a100, dgx_h100
from phalanx.costs.flat_network import alpha_beta
from phalanx.errors import UsageError

MAKERS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (alpha_beta, cluster, dgx_a100, dgx_h100)
}
EXAMPLE = "alpha_beta(latency=5e-6, bandwidth=12e9)"


def read_network(given: Any) -> Any:
    """What a user gave for a network: a value, or its text."""
    if isinstance(given, str):
        return parse_network(given)
    if not hasattr(given, "check_ranks"):
        raise UsageError(
            f"network={given!r}: give a network of phalanx.costs, or its text, e.g. {EXAMPLE} "
            "or dgx_h100(nodes=8)"
        )
    return given


def parse_network(text: str) -> Any:
    """The network that this text makes. Raises `UsageError` if it makes none.

    >>> parse_network("alpha_beta(latency=5e-6, bandwidth=12e9)")
    alpha_beta(latency=5e-6, bandwidth=12e9)
    """
    try:
        return _made(ast.parse(text.strip(), mode="eval").body)
    except UsageError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"network {text!r}: {_first_line(error)}; write a call of one of "
            f"{', '.join(MAKERS)}, e.g. {EXAMPLE}"
        ) from None


def _made(node: ast.AST) -> Any:
    if not isinstance(node, ast.Call):
        raise ValueError("that is no call")
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in MAKERS:
        raise ValueError(f"there is no {ast.unparse(node.func)!r}")
    if node.args or any(each.arg is None for each in node.keywords):
        raise ValueError(f"{name} takes its values by name")
    given = {str(each.arg): _value(each.value) for each in node.keywords}
    return MAKERS[name](**given)


def _value(node: ast.expr) -> Any:
    return _made(node) if isinstance(node, ast.Call) else ast.literal_eval(node)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
