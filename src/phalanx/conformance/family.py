"""How a family module declares its cases: a decorator over the function that does them.

    family = Family("works")

    @family.case("Work", "wait twice")
    def wait_twice(me: Context) -> None: ...

`over` repeats a case for each value of a parameter, which becomes a part of its id.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from phalanx.conformance.case_model import Case

Program = Callable[..., None]
P = TypeVar("P", bound=Program)

EVERY = range(1, 65)


@dataclass(frozen=True)
class _CaseEntry:
    operation: str
    words: tuple[str, ...]
    program: str
    over: Mapping[str, Sequence[Any]]
    ranks: Iterable[int]
    more: Mapping[str, Any]


class Family:
    """The cases and programs of one module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.programs: dict[str, Program] = {}
        self._entries: list[_CaseEntry] = []

    def case(
        self,
        operation: str,
        words: str,
        *,
        over: Mapping[str, Sequence[Any]] | None = None,
        ranks: Iterable[int] = EVERY,
        least: int = 1,
        **more: Any,
    ) -> Callable[[P], P]:
        """Declare the function below as a case (`more`: fields of `Case`). It may stand
        several times over one function, with other words."""

        def declare(program: P) -> P:
            name = f"{self.name}.{program.__name__}"
            self.programs[name] = program
            wanted = [count for count in ranks if count >= least]
            variant = tuple(words.replace(" ", "-").split("/"))
            self._entries.append(_CaseEntry(operation, variant, name, over or {}, wanted, more))
            return program

        return declare

    def cases(self, ranks: int) -> Iterator[Case]:
        for entry in self._entries:
            if ranks not in entry.ranks:
                continue
            for chosen in itertools.product(*entry.over.values()):
                given = dict(zip(entry.over, chosen, strict=True))
                yield Case(
                    family=self.name,
                    operation=entry.operation,
                    variant=(*entry.words, *(str(value).replace(" ", "-") for value in chosen)),
                    ranks=ranks,
                    program=entry.program,
                    given=given,
                    **entry.more,
                )
