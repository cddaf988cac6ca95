"""What travels between ranks and the referee, and what does not."""

from __future__ import annotations

import os
import pickle
import resource
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.engines.serialization import plain_messages
from phalanx.engines.serialization.plain_messages import NotPlain, dump_plain, load_plain, made
from phalanx.journal.events import GroupRecord, Noted
from phalanx.matching.announcement import Form, GroupForm
from phalanx.model import Deadlock, Handling, RankView, Site, StackLine, TensorSpec, ViewBlock

SITE = Site("train.py", 3, "step", "dist.all_reduce(x)")
GROUP = GroupRecord(1, "world", (0, 1))


class Ran(Exception):
    pass


class Attack:
    """A pickle of this calls a function when it is read."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> object:
        return self.call


def boom() -> None:
    raise Ran


def two(a, *, b=1):
    return [(a, n) for n in range(b)]


@pytest.mark.parametrize(
    "word",
    [
        Form("send", 0, peer=1, tag=2, inputs=(TensorSpec("float32", (2,)),), site=SITE),
        Form("recv", 0, handling=Handling("ValueError: no", SITE, None)),
        Form("barrier", 1, stack=(StackLine(SITE, True),)),
        GroupForm("key", "name", (0, 1), 1),
        ("text", Deadlock("deadlock", "error", (0,), cause="cycle", cycle=(0,), blocks=(
            ViewBlock((0,), RankView(0, "waiting", site=SITE)),), blocked=1, total=2)),
        {"notes": [1, 2.5, None, True, b"x", {3}, frozenset({4})]},
    ],
    ids=lambda word: type(word).__name__,
)  # fmt: skip
def test_words_come_out_as_they_went_in(word) -> None:
    assert load_plain(dump_plain(word)) == word


def test_groups_travel_by_their_name() -> None:
    note = Noted(1.0, 0, 0, None, "leak", ("what",), GROUP)
    data = dump_plain([note], {GROUP: "a"})
    assert load_plain(data, {"a": GROUP}.__getitem__) == [note]
    with pytest.raises(NotPlain):
        load_plain(data)


def test_classes_of_their_own_travel_as_what_they_are() -> None:
    class Size(tuple[int, ...]):
        pass

    found = load_plain(dump_plain((Size((1, 2)), object)))
    assert found == ((1, 2), str(object)) and type(found[0]) is tuple


@pytest.mark.parametrize(
    "function",
    [two, Attack.__init__, pickle._Pickler.save, typing.get_type_hints],
    ids=["two", "init", "save", "hints"],
)
def test_code_shows_its_places_and_cannot_be_executed(function) -> None:
    code = function.__code__
    found = load_plain(dump_plain(code))
    assert isinstance(found, CodeType) and found is load_plain(dump_plain(code))
    assert list(found.co_lines()) == list(code.co_lines())
    if hasattr(code, "co_positions"):
        assert list(found.co_positions()) == list(code.co_positions())
    for name in ("co_filename", "co_name", "co_firstlineno"):
        assert getattr(found, name) == getattr(code, name)
    count = code.co_argcount + code.co_kwonlyargcount
    assert found.co_varnames == code.co_varnames[:count]
    assert set(found.co_code[::2]) == {plain_messages._NOP} and found.co_names == ()


@pytest.mark.parametrize(
    "thing",
    [
        Attack(os.system, "true"),
        Attack(boom),
        Attack(getattr, SITE, "__class__"),
        os.system,
        Site,
        SITE,
        Attack(made, "os.system", ("true",)),
        Attack(made, "code", (1, 2)),
        Attack(made, "code", ("f", "n", "q", 1, (), 4, b"\x00", b"")),
        Attack(made, "code", ("f", "n", "q", 1, (), 1 << 40, b"", b"")),
        Attack(made, "code", ("f", "n", "q", 1, (3,), 4, b"", b"")),
        Attack(made, "group", ("a",)),
        Attack(made, "Site", 7),
        Attack(made, ["Site"], ()),
        Attack(made, "str", (3,)),
    ],
)
def test_what_is_not_plain_is_refused(thing) -> None:
    with pytest.raises(NotPlain):
        load_plain(pickle.dumps(thing))


def test_what_builds_the_values_cannot_be_changed() -> None:
    """The opcode BUILD sets attributes of what lies on the stack."""
    name = f"c{plain_messages.__name__}\nmade\n".encode()
    data = name + b"}X\x08\x00\x00\x00__code__K\x01sb."
    with pytest.raises(AttributeError):
        load_plain(data)
    with pytest.raises(AttributeError):
        load_plain(name + b"(N}X\x04\x00\x00\x00kindK\x01stb.")
    assert load_plain(dump_plain(SITE)) == SITE


FORM = dump_plain((Form("send", 0, peer=1, site=SITE), two.__code__, {"a": [1]}))


@contextmanager
def little_memory() -> Iterator[None]:
    """Five bytes of a pickle can ask for 30 GB, which takes a minute to fill: here it is
    refused."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@given(st.binary(max_size=200))
@example(b"\x80\x04" + b"(" * 190)
@example(b"\x80\x04Nr\xff\xff\xff\x6f.")
def test_any_bytes_are_data_or_an_error(data) -> None:
    try:
        with little_memory():
            load_plain(data)
    except Exception as error:
        assert not isinstance(error, Ran)


@given(st.integers(0, len(FORM) - 1), st.binary(min_size=1, max_size=8))
def test_damaged_messages_are_data_or_an_error(at, data) -> None:
    damaged = FORM[:at] + data + FORM[at + len(data) :]
    try:
        with little_memory():
            found = load_plain(damaged)
    except Exception:
        return
    if isinstance(found, tuple):
        for each in found:
            if isinstance(each, CodeType):
                list(each.co_lines())


@given(st.binary(max_size=64), st.integers(0, 64))
def test_tables_of_places_are_read_only_inside(table, length) -> None:
    thing = Attack(made, "code", ("f", "n", "q", 1, (), 2 * length, table, b""))
    try:
        found = load_plain(pickle.dumps(thing))
    except NotPlain:
        return
    list(found.co_lines())
    if hasattr(found, "co_positions"):
        list(found.co_positions())
