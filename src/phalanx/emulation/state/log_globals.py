"""What `logging` keeps in its module: the factory of records, the class of new loggers and the
names of levels. Each rank has its own.

They are looked up by the calling thread, from the first time that a rank sets one until the run
ends. Level names that another rank has added are visible too, because a shared library adds its
names once, in the rank that imports it first. Used by `logs.py` and `switcher.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from functools import wraps
from typing import Any

from phalanx.core.strand import here

Patch = tuple[Any, str, Any]
OWN = "logging"
"""The key under which a rank keeps its logging state."""


class _Global:
    """A name of the module `logging`. Like all logging state, a rank's value is kept by an
    object and the name of an attribute: this object's `value`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outer: Any = None
        """While values are looked up: the value for threads outside ranks."""

    def own(self) -> Any:
        """The value that the thread's rank has set, or None."""
        strand = here.strand
        return None if strand is None else strand.local.saved.get(OWN, {}).get((self, "value"))

    def keep(self, value: Any) -> None:
        assert here.strand is not None
        here.strand.local.saved.setdefault(OWN, {})[self, "value"] = value

    def put_in(self) -> None:
        if self not in in_use:
            self.outer = vars(logging)[self.name]
            vars(logging)[self.name] = self
            in_use.append(self)

    def put_back(self) -> None:
        vars(logging)[self.name] = self.outer


class _Chosen(_Global):
    """Replaces a function that `logging` calls: calls the one that the thread's rank has
    chosen."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    @property
    def value(self) -> Any:
        own = self.own()
        return self.outer if own is None else own

    @value.setter
    def value(self, chosen: Any) -> None:
        if here.strand is not None:
            self.put_in()
            self.keep(chosen)
        elif self in in_use:
            self.outer = chosen
        else:
            vars(logging)[self.name] = chosen


class _Levels(_Global, MutableMapping[Any, Any]):
    """Replaces a table of names: those of the rank, then the caller's, then any rank's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._added: dict[Any, Any] = {}

    @property
    def value(self) -> dict[Any, Any]:
        return {key: name for names in reversed(self._layers()) for key, name in names.items()}

    @value.setter
    def value(self, names: dict[Any, Any]) -> None:
        """Called outside ranks: a rank's value becomes the process's."""
        (self.outer if self in in_use else vars(logging)[self.name]).update(names)

    def put_in(self) -> None:
        self._added.clear()
        super().put_in()

    def _layers(self) -> tuple[dict[Any, Any], ...]:
        """The tables to search, in this order."""
        if here.strand is None:
            return (self.outer,)
        return self.own() or {}, self.outer, self._added

    def __getitem__(self, key: Any) -> Any:
        for names in self._layers():
            if key in names:
                return names[key]
        raise KeyError(key)

    def __setitem__(self, key: Any, name: Any) -> None:
        if here.strand is None:
            self.outer[key] = name
        else:
            self.keep({**(self.own() or {}), key: name})
            self._added.setdefault(key, name)

    def __delitem__(self, key: Any) -> None:
        del (self.outer if here.strand is None else self.own() or {})[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def copy(self) -> dict[Any, Any]:
        return self.value


_factory, _class = _Chosen("_logRecordFactory"), _Chosen("_loggerClass")
_tables = [_Levels("_levelToName"), _Levels("_nameToLevel")]
in_use: list[_Global] = []
"""The names that are looked up by the calling thread now."""


def relax() -> None:
    """After the last run: no rank has values of its own any more."""
    while in_use:
        in_use.pop().put_back()


def global_patches() -> list[Patch]:
    """Patches for the functions by which programs set and read these values."""
    return [
        (logging, "setLogRecordFactory", _setting(logging.setLogRecordFactory, _factory)),
        (logging, "getLogRecordFactory", _getting(logging.getLogRecordFactory, _factory)),
        (logging, "setLoggerClass", _setting(logging.setLoggerClass, _class, _is_logger)),
        (logging, "getLoggerClass", _getting(logging.getLoggerClass, _class)),
        (logging, "addLevelName", _adding(logging.addLevelName)),
    ]


def _is_logger(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, logging.Logger)


def _setting(original: Any, chosen: _Chosen, is_valid: Callable[[Any], bool] = callable) -> Any:
    @wraps(original)
    def choose(value: Any) -> None:
        if is_valid(value):
            chosen.value = value
        else:
            original(value)  # which says what is wrong

    return choose


def _getting(original: Any, chosen: _Chosen) -> Any:
    @wraps(original)
    def current() -> Any:
        return chosen.value if chosen in in_use else original()

    return current


def _adding(original: Any) -> Any:
    @wraps(original)
    def add(level: Any, name: Any) -> None:
        if here.strand is not None and _tables[0] not in in_use:
            for table in _tables:
                table.put_in()
        original(level, name)

    return add
