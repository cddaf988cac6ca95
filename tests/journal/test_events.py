"""Events are frozen, small and resolve nothing by themselves."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

from phalanx.callsite import mark
from phalanx.journal.events import (
    KINDS,
    GroupRecord,
    Noted,
    Posted,
    RankEnded,
    as_dict,
    make,
    specs_in,
)
from phalanx.model import Site, TensorSpec

WORLD = GroupRecord(0, "world", (4, 5, 6))


def posted(**more: Any) -> Posted:
    return Posted(1.5, 5, 0, None, WORLD, "broadcast", serial=7, member=1, **more)


def test_every_event_begins_alike() -> None:
    for kind, event in KINDS.items():
        assert event._fields[:4] == ("time", "rank", "thread", "mark"), kind
        assert event(1.0, 0, 0, None, *[None] * (len(event._fields) - 4)).kind == kind
        assert event.__doc__ and not event.__doc__.startswith(event.__name__)


def test_events_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        posted().name = "other"  # type: ignore[misc]


def test_the_cheap_way_makes_the_same() -> None:
    event = make(RankEnded, (1.0, 2, 0, None, "failed", "ValueError"))
    assert event == RankEnded(1.0, 2, 0, None, "failed", "ValueError")
    assert type(event) is RankEnded


def test_a_mark_is_resolved_when_somebody_asks() -> None:
    here = mark()
    line = sys._getframe().f_lineno - 1
    event = posted()._replace(mark=here)
    assert event.mark is here
    assert event.site.line == line
    site = Site("train.py", 3, "main")
    assert posted()._replace(mark=site).site is site
    assert posted().site is None


def test_a_call_as_reports_name_it() -> None:
    op = posted(number=3, root=2, reduce_op=0).as_op()
    assert (op.rank, op.name, op.number, op.root, op.reduce_op) == (5, "broadcast", 3, 6, "SUM")
    assert op.group.ranks == (4, 5, 6)
    assert posted(reduce_op="MAX").as_op().reduce_op == "MAX"


def test_tensors_come_from_the_signature() -> None:
    spec = TensorSpec("float32", (2, 3))
    assert list(specs_in(("all_reduce", 0, ("torch.float32", (2, 3), True)))) == [spec]
    assert list(specs_in(("send", (spec,)))) == [spec]
    odd = list(specs_in((("torch.int64", (2, 2), "cuda:1", (1, 2)),)))
    assert odd == [TensorSpec("int64", (2, 2), "cuda:1", (1, 2))]
    assert list(specs_in(None)) == []
    wanted = posted(signature=("recv", (spec,)))._replace(name="recv")
    assert wanted.as_op(bare=False).outputs == (spec,)
    assert wanted.as_op().outputs == ()


def test_as_plain_values() -> None:
    found = as_dict(posted(number=3, signature=("broadcast", TensorSpec("int64", (1,)))))
    assert found["kind"] == "posted"
    assert found["group"] == {"number": 0, "name": "world", "ranks": (4, 5, 6)}
    assert found["site"] is None
    assert found["tensors"] == ["int64[1]"]
    assert as_dict(Noted(1.0, 0, 0, None, "leak", "x"))["what"] == "x"


def test_events_without_marks_travel() -> None:
    event = RankEnded(1.0, 2, 0, Site("a.py", 1, "f"), "finished")
    assert pickle.loads(pickle.dumps(event)) == event
