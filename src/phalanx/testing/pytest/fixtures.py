"""The fixtures of one rank: made in the rank, in pytest's order, and torn down there.

Used by `part.py`, in ranks that are threads and in those that are processes. Which fixtures are
made here and which come from pytest's own process is decided by `is_per_rank`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from phalanx.callsite import shown_path
from phalanx.testing.collection.marker import PARAMETER, Ranks
from phalanx.testing.pytest.fixture_scopes import declared
from phalanx.testing.pytest_compat import pytest_private as private

OWN_MODULE = "phalanx.testing.pytest.rank_hooks"
SHARED = frozenset({"tmp_path", "tmpdir", "pytester", "testdir", "_pytest", "linecomp"})
"""Fixtures of pytest's own that have function scope and yet are made once per test: a folder
that all ranks see, and what drives a pytest of its own."""

FOR_JUNIT = ("record_xml_attribute", "record_testsuite_property")
"""Fixtures of pytest's own that every rank has, also the one of session scope: what the ranks
record is given to pytest's once."""

Maker = Callable[["RankRequest"], Any]
PlainMaker = Callable[[Any], Any]


def is_per_rank(definition: Any, way: Ranks) -> bool:
    """Whether a fixture is made in every rank rather than once for the test.

    By default one of function scope is: a model or a tensor that ranks shared would be changed
    by all of them. One of wider scope is not: it outlives the ranks, and is often a thing that
    must exist once, such as a server or a download.
    """
    name = definition.argname
    if name in way.shared or name in way.per_rank:
        return name in way.per_rank
    if (how := declared(definition.func)) is not None:
        return how == "rank"
    if private.is_direct_parameter(definition):
        return False
    module = getattr(definition.func, "__module__", "") or ""
    if module == OWN_MODULE:
        return True
    if module.startswith("_pytest.") and name in (*SHARED, *FOR_JUNIT):
        return name in FOR_JUNIT
    return bool(definition.scope == "function")


def per_rank_names(item: Any, way: Ranks) -> set[str]:
    """The fixtures of a test that pytest itself must not make."""
    found = {PARAMETER}
    for name in item.fixturenames:
        definitions = private.fixture_definitions(item, name)
        if definitions and is_per_rank(definitions[-1], way):
            found.add(name)
    return found


def shared_values(item: Any, own: set[str], way: Ranks) -> dict[tuple[str, int], Any]:
    """What pytest has made for all ranks, by name and place in the line of those that override
    each other (-1: the closest). Called after pytest's own setup of the item."""
    made = {name for name in item.funcargs if name not in own and name != "request"}
    values = {(name, -1): item.funcargs[name] for name in made}
    for name in own - {PARAMETER}:
        definitions = private.fixture_definitions(item, name)
        for index in range(-1, -len(definitions), -1):
            if name not in definitions[index].argnames:
                break
            if not is_per_rank(definitions[index - 1], way):
                value = private.make_overridden(item, definitions[index - 1])
                values[name, index - 1] = value
                break
    return values


def askers(item: Any, name: str, way: Ranks | None) -> str:
    """What requests a fixture from pytest itself: the test, if it has no marker, or shared
    fixtures, with their lines."""
    found = ["the test"] if way is None and name in private.argument_names(item) else []
    for each in item.fixturenames:
        for definition in private.fixture_definitions(item, each):
            made_in_rank = way is not None and is_per_rank(definition, way)
            if name in definition.argnames and not made_in_rank:
                found.append(f"the fixture {each!r}{_place_of(definition.func)}")
    return " and ".join(found)


def _place_of(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({shown_path(code.co_filename)}:{code.co_firstlineno})"


class RankRequest(private.RequestBase):
    """`request` in a rank."""

    def __init__(
        self,
        owner: RankFixtures,
        name: str | None = None,
        *,
        stack: tuple[Any, ...] = (),
        depths: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(name, stack)
        self.owner = owner
        self.depths = dict(depths or {})
        self.finalizers: list[Callable[[], object]] = []

    def own_node(self) -> Any:
        return self.owner.node

    @property
    def fixturenames(self) -> list[str]:
        return [name for name in self.owner.item.fixturenames if name != PARAMETER]

    def addfinalizer(self, finalizer: Callable[[], object]) -> None:
        self.finalizers.append(finalizer)

    def getfixturevalue(self, argname: str) -> Any:
        return self.owner.value(argname, self)

    def __repr__(self) -> str:
        what = f" of fixture {self.fixturename!r}" if self.fixturename else ""
        rank = self.owner.place.world.rank
        return f"<request{what} in rank {rank} for {self.owner.item!r}>"


class FixturePlan:
    """What is the same for all ranks of a test: which fixtures they need, in pytest's order,
    and what stands in for some of them.

    `makers` stand in for fixtures by name, and find what they need in the rank's `place`;
    `plain` are those that need nothing else, no request either. `ask` gives the value of a
    shared fixture that only `getfixturevalue` names.
    """

    def __init__(
        self,
        item: Any,
        way: Ranks,
        *,
        shared: Mapping[tuple[str, int], Any],
        makers: Mapping[str, Maker],
        plain: Mapping[str, PlainMaker],
        ask: Callable[[str], Any],
    ) -> None:
        self.item = item
        self.way = way
        self.shared = shared
        self.makers = makers
        self.ask = ask
        self.arguments = private.argument_names(item)
        self.in_class = isinstance(item.parent, pytest.Class)
        self.function: Any = None if self.in_class else item.obj
        """That of the test; a method is bound to each rank's own instance."""
        self.plain: dict[str, PlainMaker] = {}
        self.wanted: list[str] = []
        for name in item.fixturenames:
            if name != PARAMETER and self._is_wanted(name):
                self.wanted.append(name)
                if name in plain and (name, -1) not in shared and self._is_known(name):
                    self.plain[name] = plain[name]

    def _is_wanted(self, name: str) -> bool:
        """Shared fixtures that are not requested are not sent to ranks that are processes."""
        if name == "request" or (name, -1) in self.shared:
            return True
        definitions = private.fixture_definitions(self.item, name)
        return not definitions or is_per_rank(definitions[-1], self.way)

    def _is_known(self, name: str) -> bool:
        definitions = private.fixture_definitions(self.item, name)
        return bool(definitions) and _is_known(definitions[-1])


class RankFixtures:
    """Makes a test's fixtures in one rank, by the plan for all of them."""

    def __init__(self, plan: FixturePlan, place: Any) -> None:
        self.plan = plan
        self.item = plan.item
        self.place = place
        self.requests: list[RankRequest] = []
        self._made: dict[tuple[str, int], Any] = {}
        self._arguments: dict[str, Any] = {}
        self._node: Any = None
        self._top: RankRequest | None = None
        self._all_made = False

    @property
    def top(self) -> RankRequest:
        """That of the test itself. Many tests never look at it either; it is torn down before
        what the test needed."""
        if self._top is None:
            self._top = RankRequest(self)
            if self._all_made:
                self.requests.append(self._top)
        return self._top

    @property
    def node(self) -> Any:
        """The item as this rank sees it. Many tests never look at it."""
        if self._node is None:
            self._node = private.rank_node(self.item, self._arguments, self._add_finalizer)
            self.place.settle(self._node)
        return self._node

    def _add_finalizer(self, finalizer: Callable[[], object]) -> None:
        self.top.addfinalizer(finalizer)

    def make_all(self) -> dict[str, Any]:
        """All that the test needs, the automatic ones too; the function's arguments."""
        arguments, plain = self._arguments, self.plan.plain
        for name in self.plan.wanted:
            make = plain.get(name)
            if make is None:
                arguments[name] = self.value(name, self.top)
            else:
                arguments[name] = self._made[name, -1] = make(self.place)
        self._all_made = True
        if self._top is not None:
            self.requests.append(self._top)
        return {
            name: arguments[name] if name in arguments else self.value(name, self.top)
            for name in self.plan.arguments
        }

    def value(self, name: str, request: RankRequest) -> Any:
        if name == "request":
            return request
        index = request.depths.get(name, -1)
        for store in (self._made, self.plan.shared):
            if (name, index) in store:
                return store[name, index]
        definitions = private.fixture_definitions(self.item, name)
        if not definitions or -index > len(definitions):
            raise private.lookup_error(name, request)
        definition = definitions[index]
        if is_per_rank(definition, self.plan.way) or self._maker(definition) is not None:
            value = self._make(name, index, definition, request)
        else:
            value = self.plan.ask(name)
        self._made[name, index] = value
        return value

    def _make(self, name: str, index: int, definition: Any, request: RankRequest) -> Any:
        inner = RankRequest(
            self,
            name,
            stack=(*request.stack, definition),
            depths={**request.depths, name: index - 1},
        )
        self._give_parameter(inner, definition)
        maker = self._maker(definition)
        if maker is not None:
            self.requests.append(inner)
            return maker(inner)
        arguments = {each: self.value(each, inner) for each in definition.argnames}
        self.requests.append(inner)  # after those it needs: they are torn down after it
        return private.call_fixture(definition, inner, arguments)

    def _maker(self, definition: Any) -> Maker | None:
        return self.plan.makers.get(definition.argname) if _is_known(definition) else None

    def _give_parameter(self, request: RankRequest, definition: Any) -> None:
        callspec = getattr(self.item, "callspec", None)
        name = definition.argname
        if callspec is not None and name in callspec.params:
            request.param = callspec.params[name]
            request.param_index = callspec.indices[name]  # type: ignore[attr-defined]
        elif definition.params is not None:
            pytest.fail(
                f"the fixture {name!r} has parameters, and {self.item.nodeid} asks for it by "
                "getfixturevalue, too late to choose one; name it among the test's arguments",
                pytrace=False,
            )

    def hand_in(self, record: Any) -> None:
        """What the test has put on its node, for the item in pytest's thread or process."""
        if self._node is not None:
            properties, sections, record.marks = private.added_to(self._node)
            record.properties += properties
            record.sections += sections

    def dissolve(self) -> None:
        """See `Part.dissolve`."""
        self._node = self._top = None

    def tear_down(self) -> list[BaseException]:
        """Run all finalizers, the last one first. Returns what they raised."""
        errors: list[BaseException] = []
        while self.requests:
            request = self.requests[-1]
            if not request.finalizers:
                self.requests.pop()
                continue
            finalizer = request.finalizers.pop()
            try:
                finalizer()
            except BaseException as error:
                errors.append(error)
        return errors


def _is_known(definition: Any) -> bool:
    """Stand-ins are for pytest's own fixtures and ours, not for what a project has under the
    same name."""
    module = getattr(definition.func, "__module__", "") or ""
    return module == OWN_MODULE or module.startswith("_pytest.")
