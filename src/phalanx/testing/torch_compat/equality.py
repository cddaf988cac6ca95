"""A unittest case that compares tensors: the base of our classes where torch's own is missing.

torch's `TestCase` needs the package expecttest; without it `cases.py` uses this one. It has
what suites of distributed tests use of torch's: `assertEqual` for tensors, numbers and
containers of both, `assertNotEqual`, the tolerances, the seed.
"""

from __future__ import annotations

import random
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

SEED = 1234

OF_NUMBERS = MappingProxyType({"atol": 1e-5, "rtol": 1.3e-6})
"""What torch.testing allows float32 by default; Python's floats mostly come from `.item()`."""

Message = str | Callable[[str], str] | None


class PlainTestCase(unittest.TestCase):
    """`precision` and `rel_tol` are the least tolerances of every comparison."""

    precision: float = 0.0
    rel_tol: float = 0.0
    maxDiff = None

    def setUp(self) -> None:
        super().setUp()
        seed_everything()

    def assertEqual(  # noqa: N802
        self,
        x: Any,
        y: Any,
        msg: Message = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        equal_nan: bool = True,
        exact_dtype: bool = True,
        exact_device: bool = False,
        exact_layout: bool = False,
        exact_stride: bool = False,
        exact_is_coalesced: bool = False,
    ) -> None:
        __tracebackhide__ = True
        options = {
            "equal_nan": equal_nan,
            "check_dtype": exact_dtype,
            "check_device": exact_device,
            "check_layout": exact_layout,
            "check_stride": exact_stride,
        }
        found = _Comparison(self, atol, rtol, options).difference(x, y)
        if found is None and exact_is_coalesced:
            found = _difference_in_coalescing(x, y)
        if found is not None:
            raise self.failureException(self._worded(found, msg))

    def assertNotEqual(self, x: Any, y: Any, msg: Message = None, **options: Any) -> None:  # type: ignore[override]  # noqa: N802
        __tracebackhide__ = True
        try:
            self.assertEqual(x, y, **options)
        except self.failureException:
            return
        raise self.failureException(self._worded(f"{x!r} equals {y!r}", msg))

    def assertEqualIgnoreType(self, x: Any, y: Any, *rest: Any, **options: Any) -> None:  # noqa: N802
        __tracebackhide__ = True
        self.assertEqual(x, y, *rest, exact_dtype=False, **options)

    def _worded(self, found: str, msg: Message) -> str:
        if callable(msg):
            return msg(found)
        return found if msg is None else f"{found}\n{msg}" if self.longMessage else msg


def seed_everything(seed: int = SEED) -> None:
    """Every rank of every test starts with the same random numbers."""
    seed_torch(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, but only for an accelerator that this build of torch knows: that
    one writes down the stack for every kind that might come, a quarter of a millisecond.
    Whether it is here is not asked, which takes a fifth of a second the first time."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or kind.type == "cuda":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    if kind is not None and kind.type == "cuda":
        torch.cuda.manual_seed_all(seed)


class _Comparison:
    """One comparison: goes down into containers and says where the first difference is. What
    is equal is for `torch.testing.assert_close` to say; it alone takes neither strings and
    other objects nor a tensor beside a number."""

    def __init__(
        self,
        case: PlainTestCase,
        atol: float | None,
        rtol: float | None,
        options: Mapping[str, Any],
    ) -> None:
        self._case = case
        self._given = (atol, rtol)
        self._options = options

    def difference(self, x: Any, y: Any, where: str = "") -> str | None:
        if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor):
            return self._of_tensors(x, y, where)
        if _is_number(x) and _is_number(y):
            return self._of_numbers(x, y, where)
        if _is_array(x) or _is_array(y):
            return self._of_tensors(_as_tensor(x), _as_tensor(y), where)
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            return self._of_mappings(x, y, where)
        if _is_sequence(x) and _is_sequence(y):
            return self._of_sequences(x, y, where)
        return self._of_others(x, y, where)

    def _of_tensors(self, x: Any, y: Any, where: str) -> str | None:
        first = x if isinstance(x, torch.Tensor) else _like(x, y)
        second = y if isinstance(y, torch.Tensor) else _like(y, x)
        if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
            return _placed(f"{_short(x)} != {_short(y)}", where)
        found = self._if_not_close(first, second, self._options)
        return None if found is None else _placed(found, where)

    def _of_numbers(self, x: Any, y: Any, where: str) -> str | None:
        options = {**self._options, "check_dtype": False}
        exact = isinstance(x, int) and isinstance(y, int)
        found = self._if_not_close(x, y, options, {} if exact else OF_NUMBERS)
        return None if found is None else _placed(f"{x!r} != {y!r}", where)

    def _if_not_close(
        self,
        x: Any,
        y: Any,
        options: Mapping[str, Any],
        usual: Mapping[str, float] = MappingProxyType({}),
    ) -> str | None:
        atol, rtol = self._given
        least = {"atol": self._case.precision, "rtol": self._case.rel_tol}
        given = {"atol": max(atol or 0, least["atol"]), "rtol": max(rtol or 0, least["rtol"])}
        allowed = [usual, least] if atol is None and rtol is None else [given]
        found = [_if_not_close(x, y, {**options, **tolerances}) for tolerances in allowed]
        return None if None in found else found[0]

    def _of_mappings(self, x: Any, y: Any, where: str) -> str | None:
        if set(x) != set(y):
            only = f"only in the first: {_names(set(x) - set(y))}"
            return _placed(
                f"keys differ; {only}; only in the second: {_names(set(y) - set(x))}", where
            )
        found = (self.difference(x[key], y[key], f"{where}[{key!r}]") for key in x)
        return next((each for each in found if each is not None), None)

    def _of_sequences(self, x: Any, y: Any, where: str) -> str | None:
        if len(x) != len(y):
            return _placed(f"lengths differ: {len(x)} != {len(y)}", where)
        pairs = enumerate(zip(x, y, strict=True))
        found = (self.difference(one, other, f"{where}[{i}]") for i, (one, other) in pairs)
        return next((each for each in found if each is not None), None)

    def _of_others(self, x: Any, y: Any, where: str) -> str | None:
        try:
            unittest.TestCase.assertEqual(self._case, x, y)
        except AssertionError as error:
            return _placed(str(error), where)
        return None


def _like(thing: Any, model: torch.Tensor) -> Any:
    """A number or a list beside a tensor is taken for a tensor of its kind."""
    if _is_number(thing):
        return torch.full_like(model, thing) if model.numel() == 1 else torch.tensor(thing)
    if _is_sequence(thing):
        return torch.as_tensor(thing, dtype=model.dtype, device=model.device)
    return _as_tensor(thing)


def _as_tensor(thing: Any) -> Any:
    return torch.as_tensor(thing) if _is_array(thing) or _is_sequence(thing) else thing


def _is_number(thing: Any) -> bool:
    return isinstance(thing, (int, float, complex))


def _is_array(thing: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(thing, numpy.ndarray)


def _is_sequence(thing: Any) -> bool:
    known = (Sequence, torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
    return isinstance(thing, known) and not isinstance(thing, (str, bytes))


def _if_not_close(x: Any, y: Any, options: Mapping[str, Any]) -> str | None:
    try:
        torch.testing.assert_close(x, y, **options)
    except (AssertionError, TypeError, ValueError) as error:
        return str(error)
    return None


def _difference_in_coalescing(x: Any, y: Any) -> str | None:
    if not (isinstance(x, torch.Tensor) and x.is_sparse and y.is_sparse):
        return None
    if x.is_coalesced() == y.is_coalesced():
        return None
    return f"is_coalesced() differs: {x.is_coalesced()} != {y.is_coalesced()}"


def _placed(text: str, where: str) -> str:
    return f"{text}\nThe difference is at {where}." if where else text


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 80 else f"a {type(thing).__name__}"


def _names(keys: set[Any]) -> str:
    return ", ".join(sorted(map(repr, keys))) or "none"
