"""What `explore=` of the marker, `--ranks-explore` and the ini setting say, as one value.

Used at collection. All three may say a part: `explore=200` how many schedules, a dict or the
text of an option several things. Knows neither torch nor pytest.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from phalanx.errors import UsageError
from phalanx.explore.explore_options import ExploreOptions

SETTINGS = tuple(
    each.name for each in fields(ExploreOptions) if each.name not in ("replay", "record")
)
"""What can be said there. One run is repeated by `--ranks-replay`, and recorded by
`--ranks-record`, as any test's."""
EXAMPLE = "explore=200, or explore={'schedules': 500, 'strategy': 'pct'}"
_DEFAULTS: Mapping[str, Any] = {
    each.name: each.default for each in fields(ExploreOptions) if each.name in SETTINGS
}

Said = Mapping[str, Any] | None
"""What one place says; None: that the test is not explored."""


def read_explore(given: Any, where: str | None = None) -> Said:
    """From a marker: True, a number of schedules, a dict, an `ExploreOptions`; False is off.
    `where` is how the user wrote it.

    >>> read_explore(200)
    {'schedules': 200}
    """
    where = where or f"explore={given!r}"
    if given is False:
        return None
    if given is True:
        return {}
    if isinstance(given, ExploreOptions):
        given = {
            name: value
            for name, default in _DEFAULTS.items()
            if (value := getattr(given, name)) != default
        }
    elif isinstance(given, int):
        given = {"schedules": given}
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{where}: give how many schedules to try, or what else is asked for, e.g. "
            f"{EXAMPLE}; False for none"
        )
    for name in given:
        if name not in SETTINGS:
            raise UsageError(
                f"{where}: unknown setting {name!r}; allowed: {', '.join(SETTINGS)}"
            )
    try:
        ExploreOptions.of(**given)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return dict(given)


def parse_explore(text: str, where: str) -> Said:
    """From an option or the ini file: `200`, `on`, `off`, `seconds=10, strategy=pct`.

    >>> parse_explore("500, strategy=pct", "--ranks-explore")
    {'schedules': 500, 'strategy': 'pct'}
    """
    if text in ("on", "off"):
        return {} if text == "on" else None
    try:
        call = ast.parse(f"explore({text})", mode="eval").body
        assert isinstance(call, ast.Call) and len(call.args) <= 1
        said = {str(each.arg): _value(each.value) for each in call.keywords}
        if call.args:
            said["schedules"] = _value(call.args[0])
    except (SyntaxError, ValueError, AssertionError):
        raise UsageError(
            f"{where}: give how many schedules to try, on, off, or settings with commas "
            'between them, e.g. 200, or "500, strategy=pct", or "seconds=10, '
            "faults='kill,delay'\""
        ) from None
    return read_explore(said, where)


def _value(node: ast.expr) -> Any:
    """A word needs no quotes."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def explore_options(*said: Said, seed: int, faults: Any, replay: str) -> ExploreOptions | None:
    """From all places, the weakest first; None if the test is not explored. `seed` and `faults`
    are those of the marker, where nothing else is said; a token to `replay` repeats one run of
    any test."""
    together: dict[str, Any] = {}
    asks = False
    for each in said:
        if each is None:
            asks, together = False, {}
        else:
            asks, together = True, {**together, **each}
    if not asks and not replay:
        return None
    together.setdefault("seed", seed)
    if faults:
        together.setdefault("faults", faults)
    return ExploreOptions.of(**together, replay=replay or None)
