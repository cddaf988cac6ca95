"""`assertEqual` of the case that stands in where torch's own cannot be imported."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.testing import TestCase
from phalanx.testing.torch_compat.equality import PlainTestCase

EQUAL = [
    (1, 1),
    (1, 1.0),
    (1.0, 1.0 + 1e-7),
    (float("nan"), float("nan")),
    (True, True),
    ("text", "text"),
    (b"bytes", b"bytes"),
    (None, None),
    ({1, 2}, {2, 1}),
    ([1, 2], (1, 2)),
    (torch.float32, torch.float32),
    (torch.ones(2), torch.ones(2)),
    (torch.ones(2), torch.ones(2) + 1e-6),
    (torch.tensor(5), 5),
    (torch.tensor([5.0]), 5),
    (torch.tensor([1, 2]), [1, 2]),
    ([1.0, 2.0], torch.tensor([1.0, 2.0])),
    (torch.tensor(float("nan")), torch.tensor(float("nan"))),
    ([torch.ones(1), {"a": torch.zeros(2)}], [torch.ones(1), {"a": torch.zeros(2)}]),
    (np.array([1.0, 2.0]), np.array([1.0, 2.0])),
    (torch.tensor([1.0, 2.0]), np.array([1.0, 2.0], dtype=np.float32)),
    (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
]

DIFFERENT = [
    (1, 2, "1 != 2"),
    (1.0, 1.001, "1.0 != 1.001"),
    ("text", "test", "'text' != 'test'"),
    (None, 1, "None != 1"),
    (torch.ones(2), None, "!= None"),
    ({1, 2}, {2, 3}, "Items in the first set"),
    ([1, 2], [1], "lengths differ: 2 != 1"),
    ([1, [2, 3]], [1, [2, 4]], "3 != 4\nThe difference is at [1][1]."),
    ({"a": 1}, {"b": 1}, "keys differ; only in the first: 'a'; only in the second: 'b'"),
    ({"a": [1]}, {"a": [2]}, "The difference is at ['a'][0]."),
    (torch.ones(2), torch.zeros(2), "Tensor-likes are not close!"),
    (torch.ones(2), torch.ones(3), "shape"),
    (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype"),
    (torch.tensor([1, 2]), 1, "shape"),
    (torch.ones(2), "text", "!= 'text'"),
    (torch.float32, torch.float64, "torch.float32 != torch.float64"),
    (np.array([1.0]), np.array([2.0]), "close"),
]


@pytest.fixture
def case() -> PlainTestCase:
    return PlainTestCase()


@pytest.mark.parametrize("x, y", EQUAL, ids=str)
def test_equal(x: Any, y: Any, case: PlainTestCase) -> None:
    case.assertEqual(x, y)
    with pytest.raises(AssertionError):
        case.assertNotEqual(x, y)


@pytest.mark.parametrize("x, y, text", DIFFERENT, ids=str)
def test_different(x: Any, y: Any, text: str, case: PlainTestCase) -> None:
    with pytest.raises(AssertionError) as caught:
        case.assertEqual(x, y)
    assert text in str(caught.value)
    case.assertNotEqual(x, y)


def test_tolerances(case: PlainTestCase) -> None:
    near = torch.ones(2) * 1.01
    case.assertEqual(near, torch.ones(2), atol=0.1, rtol=0)
    case.assertEqual(near, torch.ones(2), atol=0.1)
    case.assertEqual(near, torch.ones(2), rtol=0.1)
    case.assertEqual(1.01, 1, atol=0.1)
    with pytest.raises(AssertionError):
        case.assertEqual(near, torch.ones(2), atol=0.001, rtol=0)
    case.precision = 0.1
    case.assertEqual(near, torch.ones(2))
    case.assertEqual(1.01, 1)
    case.precision, case.rel_tol = 0.0, 0.1
    case.assertEqual(near, torch.ones(2))


def test_options(case: PlainTestCase) -> None:
    one, other = torch.ones(2), torch.ones(2, dtype=torch.float64)
    case.assertEqual(one, other, exact_dtype=False)
    case.assertEqualIgnoreType(one, other)
    nan = torch.tensor(float("nan"))
    for x in (nan, float("nan")):
        with pytest.raises(AssertionError):
            case.assertEqual(x, x * 1, equal_nan=False)
    turned = torch.arange(4).reshape(2, 2).t()
    case.assertEqual(turned, turned.contiguous())
    with pytest.raises(AssertionError):
        case.assertEqual(turned, turned.contiguous(), exact_stride=True)
    coalesced = torch.eye(2).to_sparse()
    loose = torch.sparse_coo_tensor(
        coalesced.indices(), coalesced.values(), (2, 2), check_invariants=True
    )
    case.assertEqual(coalesced, loose)
    with pytest.raises(AssertionError, match="is_coalesced"):
        case.assertEqual(coalesced, loose, exact_is_coalesced=True)


def test_messages(case: PlainTestCase) -> None:
    with pytest.raises(AssertionError, match="1 != 2\nand why"):
        case.assertEqual(1, 2, "and why")
    with pytest.raises(AssertionError, match=r"^about 1 != 2$"):
        case.assertEqual(1, 2, lambda found: f"about {found}")
    case.longMessage = False
    with pytest.raises(AssertionError, match=r"^only this$"):
        case.assertEqual(1, 2, "only this")


def test_modules_are_sequences(case: PlainTestCase) -> None:
    layers = nn.ModuleList([nn.Identity()])
    case.assertEqual(layers, [layers[0]])


def test_each_test_begins_with_the_same_random_numbers(case: PlainTestCase) -> None:
    drawn = []
    for _ in range(2):
        case.setUp()
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))
        torch.rand(3)
    assert drawn[0] == drawn[1]


def test_torchs_own_base_class_is_taken_where_it_is_there() -> None:
    try:
        from torch.testing._internal.common_utils import TestCase as TorchTestCase
    except ImportError:
        assert TestCase is PlainTestCase
    else:
        assert TestCase is TorchTestCase
