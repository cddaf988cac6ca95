"""What becomes of a value, and whether the order of two updates matters: sources, answers."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from phalanx.source_updates import find_update, received_at
from phalanx.source_values import fate_of, strongest


@pytest.fixture
def place(tmp_path: Path):
    """The place in a function `f` at which it is when it calls `get` or `recv`."""

    def place(source: str) -> Any:
        file = tmp_path / f"program{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(source))
        found = []

        def get(*_: Any) -> Any:
            frame = sys._getframe(1)
            found.append((frame.f_code, frame.f_lasti))
            raise LookupError

        names: dict[str, Any] = {"get": get, "recv": get, "g": print, "x": 0, "sleep": print}
        exec(compile(file.read_text(), str(file), "exec"), names)
        with pytest.raises(LookupError):
            names["f"]()
        return found[0]

    return place


@pytest.mark.parametrize(
    ("body", "use"),
    [
        ("get()", "dropped"),
        ("print(int(get()))", "shown"),
        ("n = int(get())\n    log.info('%d', n)", "shown"),
        ("if get() > 3:\n        x", "shown"),
        ("n = get()\n    n = 3\n    g(n)", "dropped"),
        ("n = get() / 2\n    print(n)", "computed"),
        ("n = min(get() for _ in [1])\n    print(n)", "computed"),
        ("ns = []\n    ns.append(get())\n    print(ns)", "shown"),
        ("ns = []\n    ns.append(get())\n    m = max(ns)\n    print(m)", "computed"),
        ("g(1 / get())", "used"),
        ("n = get()\n    g(n)", "used"),
        ("assert get() == 4", "used"),
        ("assert get() > 4", "shown"),
        ("while get() < 4:\n        pass", "polled"),
        ("while True:\n        if get() < 4:\n            break", "polled"),
        ("n = 0\n    while n < 4:\n        n = get()", "polled"),
        ("for _ in x, x:\n        print(get())\n        sleep(1)", "polled"),
        ("for _ in x, x:\n        ns = [get()]\n        sleep(1)\n    print(ns)", "polled"),
        ("for _ in x, x:\n        print(100 * get())\n        sleep(1)", "polled"),
        (
            "for _ in x, x:\n        if get() > 3:\n            break\n        sleep(1)",
            "polled",
        ),
        (
            "for _ in x, x:\n        n = get()\n        if n:\n            return g(n)\n"
            "        sleep(1)",
            "polled",
        ),
        ("while x < 9:\n        g(get())\n        sleep(1)", "polled"),
        ("for _ in x, x:\n        g(get())\n        sleep(1)", "used"),
        (
            "w = 1\n    for _ in x, x:\n        w -= get() * w\n        sleep(1)\n    print(w)",
            "computed",
        ),
        ("for _ in x, x:\n        if x:\n            sleep(1)\n        print(get())", "shown"),
        ("for _ in [1]:\n        n = get()\n        g(n)", "used"),
    ],
)
def test_what_becomes_of_a_value(place, body: str, use: str) -> None:
    fate = fate_of(place(f"def f():\n    {body}\n"), "get")
    assert fate is not None and strongest(fate.uses) == use


@pytest.mark.parametrize(
    "body", ["with get(): pass", "get()()", "(lambda: 1)(*get())", "get().n"]
)
def test_what_is_not_understood_is_not_said(place, body: str) -> None:
    fate = fate_of(place(f"def f():\n    {body}\n"), "get")
    assert fate is None or strongest(fate.uses) in ("used", "dropped")


@pytest.mark.parametrize(
    ("body", "is_total"),
    [
        ("total = get()\n    print(total)", True),
        ("print('samples in all:', get())", True),
        ("n = get()\n    log.info('Total: %d', n)", True),
        ("x.total_rows = get()\n    print(x.total_rows)", True),
        ("print('samples', get())", False),
        ("total = get()\n    print(f'{total} of {x} done')", False),
        ("total = get()\n    print('so far', total)", False),
        ("total = 3\n    print(get(), total)", False),
        ("print(f'{get()}/{x} in total')", False),
    ],
)
def test_what_the_program_calls_a_total(place, body: str, is_total: bool) -> None:
    fate = fate_of(place(f"def f():\n    {body}\n"), "get")
    assert fate is not None and fate.is_total == is_total


def test_a_comparison_is_told_if_it_is_all(place) -> None:
    def compared(body: str) -> str | None:
        fate = fate_of(place(f"def f():\n    {body}\n"), "get")
        assert fate is not None
        return fate.comparison[0] if fate.comparison is not None else None

    assert compared("while int(get()) < x:\n        pass") == "Lt"
    assert compared("while x > int(get()):\n        pass") == "Lt"
    assert compared("n = get()\n    if n == x:\n        pass") == "Eq"
    assert compared("while get() + 1 < x:\n        pass") is None
    assert compared("n = get()\n    if n == x:\n        print(n)") is None


def test_what_is_returned_is_up_to_the_caller(place) -> None:
    fate = fate_of(place("def f():\n    return int(get())\n"), "get")
    assert fate is not None and fate.returned and not fate.computed
    fate = fate_of(place("def f():\n    return 2 * get()\n"), "get")
    assert fate is not None and fate.returned and fate.computed


UPDATE = """
def f():
    for i in [1, 2]:
        recv(g)
        {}
    h(a, b)
g = a = b = n = 0
"""


@pytest.mark.parametrize(
    ("body", "matters"),
    [
        ("a = 0.9 * a + g", True),
        ("a = a / 2 + g", True),
        ("a = g - a", True),
        ("a -= 0.1 * (g + 0.01 * a)", True),
        ("a.mul_(0.9).add_(g)", True),
        ("a.mul_(0.9); a.add_(g, alpha=2)", True),
        ("b = 0.5 * b + g.clone(); a -= b", True),
        ("a += g", False),
        ("a = a + 2 * g", False),
        ("a = a - g / 4", False),
        ("a = a * g", False),
        ("a = a + g * g - g", False),
        ("a = g", False),
        ("a = max(0.9 * a, g)", False),
        ("a = a + (g - a) / (i + 1)", False),
        ("n += 1; a += (g - a) / n", False),
        ("a[g] = 0.9 * a[g] + g", False),
        ("if x: a = 0.9 * a + g", False),
        ("a = 0.9 * a + k(g)", False),
        ("a = 0.9 * a + 1", False),
    ],
)
def test_updates_whose_order_matters(place, body: str, matters: bool) -> None:
    source = UPDATE.format(body.replace("; ", "\n        "))
    (received,) = received_at(place(source))
    assert (find_update(received) is not None) == matters


def test_a_receive_whose_answer_is_kept_says_who_sent(place) -> None:
    assert received_at(place("def f():\n    s = recv(x)\n")) == []


def test_a_function_that_several_functions_call_is_not_followed(place) -> None:
    source = """
    def f():
        t = x
        recv(t)
        return t
    def g():
        a = f()
        return a
    def h():
        b = f()
        return b
    """
    assert received_at(place(source)) == []
