"""What must agree when ops meet: by example for each rule, by property for all of them."""

from __future__ import annotations

import doctest
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.matching import agreement, hints
from phalanx.matching.agreement import RULES, find_mismatch, find_pair_mismatch
from phalanx.matching.agreement_rules import signed_facts
from phalanx.matching.announcement import Form, signature_of
from phalanx.model import Group, Meeting, Mismatch, Op, Site, TensorSpec, rank_list
from phalanx.report.text import render

STEP = Site("train.py", 58, "step", "dist.all_reduce(grad)")
SYNC = Site("train.py", 63, "step", "dist.barrier()")
light = settings(max_examples=50, deadline=None)


def spec(*shape: int, dtype: str = "float32", device: str = "cpu") -> TensorSpec:
    return TensorSpec(dtype, shape, device)


def group(size: int) -> Group:
    return Group("world", tuple(range(size)))


def meet(ops: list[Op], *, number: int = 0, history: dict | None = None) -> Mismatch | None:
    return find_mismatch(Meeting(ops[0].group, number, tuple(ops), history or {}))


def found(ops: list[Op]) -> Mismatch:
    verdict = meet(ops)
    assert verdict is not None
    return verdict


def correct_ops(name: str, size: int, seed: int = 0) -> list[Op]:
    """A correct collective with sizes as uneven as the operation allows."""
    world, dice = group(size), random.Random(seed)
    root = dice.randrange(size) if "root" in RULES[name].agree else None
    reduce_op = "SUM" if "reduce op" in RULES[name].agree else None
    base = [
        Op(r, name, world, 0, root=root, reduce_op=reduce_op, site=STEP) for r in range(size)
    ]
    sizes = [dice.randrange(1, 6) for _ in range(size)]
    slots = tuple(spec(rows, 2) for rows in sizes)
    if "barrier" in name:
        return base
    if name == "all_gather":
        return [replace(op, inputs=(slots[op.rank],), outputs=slots) for op in base]
    if name == "gather":
        lists = [slots if op.rank == root else () for op in base]
        return [replace(op, inputs=(slots[op.rank],), outputs=lists[op.rank]) for op in base]
    if name == "scatter":
        lists = [slots if op.rank == root else () for op in base]
        return [replace(op, outputs=(slots[op.rank],), inputs=lists[op.rank]) for op in base]
    if name == "reduce_scatter":
        return [replace(op, inputs=slots, outputs=(slots[op.rank],)) for op in base]
    if "all_to_all" in name:
        table = [[dice.randrange(4) for _ in range(size)] for _ in range(size)]
        columns = [list(column) for column in zip(*table, strict=True)]
    if name == "all_to_all":
        return [
            replace(
                op,
                inputs=tuple(spec(rows) for rows in table[op.rank]),
                outputs=tuple(spec(rows) for rows in columns[op.rank]),
            )
            for op in base
        ]
    if name == "all_to_all_single":
        return [
            replace(
                op,
                inputs=(spec(sum(table[op.rank]), 3),),
                outputs=(spec(sum(columns[op.rank]), 3),),
                input_splits=tuple(table[op.rank]),
                output_splits=tuple(columns[op.rank]),
            )
            for op in base
        ]
    given = (spec(4, 2), spec(3)) if name.endswith("coalesced") else (spec(4, 2),)
    return [replace(op, inputs=given) for op in base]


COLLECTIVES = [name for name in RULES if name not in ("send", "recv")]


@light
@given(st.sampled_from(COLLECTIVES), st.integers(2, 9), st.integers(0, 99))
def test_correct_calls_never_mismatch(name: str, size: int, seed: int) -> None:
    ops = correct_ops(name, size, seed)
    random.Random(seed).shuffle(ops)
    assert meet(ops) is None
    assert meet(ops[:-1]) is None


def edit(op: Op, field: str) -> Op:
    """The op with one field changed so that it can no longer agree with the others."""
    if field == "operation":
        return replace(op, name="barrier" if op.name != "barrier" else "all_reduce")
    if field == "root":
        assert op.root is not None
        return replace(op, root=(op.root + 1) % len(op.group.ranks))
    if field == "reduce op":
        return replace(op, reduce_op="MAX")
    if field == "dtype":
        other = {"dtype": "int64"}
    elif field == "device type":
        other = {"device": "cuda:0"}
    elif field == "memory layout":
        other = {"strides": (1, 4)}
    elif field == "number of tensors":
        return replace(op, inputs=(*op.inputs, spec(1)) * 9, outputs=op.outputs * 3)
    else:
        return resize(op)
    return replace(
        op,
        inputs=tuple(replace(one, **other) for one in op.inputs),
        outputs=tuple(replace(one, **other) for one in op.outputs),
    )


def resize(op: Op) -> Op:
    """More of everything that the op gives or takes."""
    return replace(
        op,
        inputs=tuple(
            replace(one, shape=(one.shape[0] + 7, *one.shape[1:])) for one in op.inputs
        ),
        outputs=tuple(
            replace(one, shape=(one.shape[0] + 9, *one.shape[1:])) for one in op.outputs
        ),
        input_splits=tuple(rows + 7 for rows in op.input_splits),
        output_splits=tuple(rows + 9 for rows in op.output_splits),
    )


@light
@given(st.sampled_from(COLLECTIVES), st.integers(3, 9), st.integers(0, 99), st.data())
def test_one_edit_is_found_and_blamed(
    name: str, size: int, seed: int, data: st.DataObject
) -> None:
    fields = [field for field in RULES[name].agree if field != "splits"]
    field = data.draw(st.sampled_from(fields))
    odd = data.draw(st.integers(0, size - 1))
    ops = correct_ops(name, size, seed)
    ops[odd] = edit(ops[odd], field)
    verdict = found(ops)
    expected = "splits" if (name, field) == ("all_to_all_single", "shape") else field
    assert verdict.differs == (expected,)
    # A root whose list fits nobody is one against many only where the sizes are even.
    if name not in ("gather", "scatter") or field != "shape" or ops[odd].root != odd:
        assert verdict.ranks == (odd,)
    assert sorted(rank for block in verdict.blocks for rank in block.ranks) == list(range(size))


@light
@given(st.integers(2, 8), st.data())
def test_rank_order_does_not_change_the_verdict(size: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(COLLECTIVES))
    ops = correct_ops(name, size)
    ops[0] = edit(ops[0], "operation")
    assert meet(data.draw(st.permutations(ops))) == meet(ops)


def reduces(*shapes: tuple[int, ...], **changes: object) -> list[Op]:
    world = group(len(shapes))
    ops = [
        Op(rank, "all_reduce", world, 0, reduce_op="SUM", inputs=(spec(*shape),), site=STEP)
        for rank, shape in enumerate(shapes)
    ]
    return [replace(op, **changes) for op in ops]  # type: ignore[arg-type]


def test_same_elements_in_another_shape_are_legal() -> None:
    assert meet(reduces((4, 2), (8,), (2, 4))) is None


def test_different_lines_alone_are_legal() -> None:
    ops = reduces((4,), (4,))
    assert meet([ops[0], replace(ops[1], site=SYNC)]) is None


def test_device_index_alone_is_legal() -> None:
    ops = [
        replace(op, inputs=(spec(4, device=f"cuda:{op.rank}"),)) for op in reduces((4,), (4,))
    ]
    assert meet(ops) is None


def test_unknown_operation_agrees_by_name_and_root() -> None:
    ops = [Op(rank, "new_thing", group(2), 0, inputs=(spec(rank),)) for rank in range(2)]
    assert meet(ops) is None


def test_blocks_put_the_largest_first_and_mark_the_odd() -> None:
    verdict = found(reduces((5,), (4,), (4,), (4,)))
    assert [(block.ranks, block.odd) for block in verdict.blocks] == [
        ((1, 2, 3), False),
        ((0,), True),
    ]
    assert verdict.ranks == (0,)


def test_two_against_two_is_undecided() -> None:
    verdict = found(reduces((5,), (4,), (5,), (4,)))
    assert [block.ranks for block in verdict.blocks] == [(0, 2), (1, 3)]
    assert not any(block.odd for block in verdict.blocks)
    assert verdict.ranks == ()


def test_a_plurality_is_no_majority() -> None:
    assert found(reduces((5,), (5,), (4,), (3,))).ranks == ()


def test_blocks_part_by_line() -> None:
    ops = reduces((4,), (4,), (4,), (5,))
    ops[2] = replace(ops[2], site=SYNC)
    blocks = found(ops).blocks
    assert [(block.ranks, block.odd) for block in blocks] == [
        ((0, 1), False),
        ((2,), False),
        ((3,), True),
    ]


def test_a_block_shows_only_what_its_ranks_share() -> None:
    ops = correct_ops("all_gather", 4, seed=1)
    assert len({op.inputs for op in ops}) > 1
    ops[3] = Op(3, "barrier", ops[0].group, 0, site=SYNC)
    block = found(ops).blocks[0]
    assert block.ranks == (0, 1, 2)
    assert block.op.inputs == ()
    assert block.op.name == "all_gather"


def test_several_fields_are_all_named() -> None:
    ops = reduces((4,), (4,), (4,))
    ops[1] = replace(ops[1], reduce_op="MAX", inputs=(spec(5, dtype="int64"),))
    assert found(ops).differs == ("reduce op", "dtype", "shape")


def test_other_operation_hides_what_follows_from_it() -> None:
    ops = reduces((4,), (4,), (4,))
    ops[1] = Op(1, "broadcast", ops[0].group, 0, root=0, inputs=(spec(9, dtype="int8"),))
    assert found(ops).differs == ("operation",)


def test_missing_members_are_named_and_do_not_vote() -> None:
    verdict = found(reduces((4,), (4,), (5,), (4,), (4,))[:3])
    assert verdict.missing == (3, 4)
    assert verdict.ranks == (2,)


def test_members_that_agree_so_far_are_no_mismatch() -> None:
    assert meet(reduces((4,), (4,), (4,))[:2]) is None
    assert meet(reduces((4,), (4,), (4,))[:1]) is None


def test_group_ranks_need_not_start_at_zero() -> None:
    pair = Group("odd", (7, 3))
    slots = (spec(1), spec(2))
    ops = [
        Op(rank, "all_gather", pair, 0, inputs=(slots[at],), outputs=slots)
        for at, rank in enumerate(pair.ranks)
    ]
    assert meet(ops) is None
    assert meet([replace(ops[0], inputs=ops[1].inputs), ops[1]]) is not None


def test_gather_list_on_the_root_says_what_fits() -> None:
    ops = correct_ops("gather", 4, seed=3)
    root = ops[0].root
    late = [op for op in ops if op.rank != root]
    assert meet(late) is None
    wrong = (root + 1) % 4 if root is not None else 0
    ops[wrong] = replace(ops[wrong], inputs=(spec(99),))
    assert found(ops).ranks == (wrong,)


def splits(*rows: tuple[tuple[int, ...], tuple[int, ...]], width: int = 3) -> list[Op]:
    world = group(len(rows))
    return [
        Op(
            rank,
            "all_to_all_single",
            world,
            0,
            inputs=(spec(sum(ins), width),),
            outputs=(spec(sum(outs), width),),
            input_splits=ins,
            output_splits=outs,
        )
        for rank, (ins, outs) in enumerate(rows)
    ]


def test_one_wrong_split_names_both_ends() -> None:
    ops = splits(((1, 1, 1), (1, 1, 1)), ((1, 1, 2), (1, 1, 1)), ((1, 1, 1), (1, 1, 1)))
    verdict = found(ops)
    assert verdict.differs == ("splits",)
    assert verdict.ranks == (1, 2)
    assert verdict.hint == "rank 1 sends 2 rows to rank 2, which expects 1 row from it"


def test_even_splits_stand_for_equal_rows() -> None:
    ops = splits(((2, 2), (2, 2)), ((2, 2), (2, 2)))
    assert meet([replace(ops[0], input_splits=(), output_splits=()), ops[1]]) is None
    small = replace(ops[0], input_splits=(), inputs=(spec(2, 3),))
    assert found([small, ops[1]]).differs == ("splits",)


def test_rows_of_another_size_are_a_shape_mismatch() -> None:
    ops = splits(*[((1, 1, 1), (1, 1, 1))] * 3)
    ops[2] = replace(ops[2], inputs=(spec(3, 5),), outputs=(spec(3, 5),))
    verdict = found(ops)
    assert (verdict.differs, verdict.ranks) == (("shape",), (2,))


def test_rows_of_another_size_with_as_many_elements_are_legal() -> None:
    ops = splits(((2, 2), (2, 2)), ((1, 1), (1, 1)))
    wide = (spec(2, 6),)
    assert meet([ops[0], replace(ops[1], inputs=wide, outputs=wide)]) is None


def test_uneven_coalesced_batches_differ_in_number_only() -> None:
    ops = correct_ops("all_reduce_coalesced", 3)
    ops[1] = replace(ops[1], inputs=ops[1].inputs[:1])
    assert found(ops).differs == ("number of tensors",)


def test_each_rank_its_own_root_is_told() -> None:
    ops = [replace(op, root=op.rank) for op in correct_ops("broadcast", 3)]
    assert found(ops).hint == "each rank named itself as root"


def history(size: int, calls: int, *, first: int = 0) -> dict[int, tuple[Op, ...]]:
    world = group(size)
    return {
        rank: tuple(
            Op(
                rank,
                "all_reduce" if n % 2 == 0 else "barrier",
                world,
                n,
                site=(STEP, SYNC)[n % 2],
            )
            for n in range(first, calls)
        )
        for rank in range(size)
    }


def skipped(past: dict[int, tuple[Op, ...]], number: int) -> Mismatch:
    ops = [replace(op, number=number) for op in reduces((4,), (4,), (4,))]
    ops[2] = Op(2, "barrier", ops[0].group, number, site=SYNC)
    verdict = meet(ops, number=number, history=past)
    assert verdict is not None
    return verdict


def test_hint_when_a_usual_call_was_left_out() -> None:
    verdict = skipped(history(3, 4), 4)
    assert verdict.hint == (
        "in calls #0-#3 every rank reached train.py:63 right after train.py:58; "
        "this time rank 2 reached train.py:63 without it"
    )
    assert verdict.agreed == history(3, 4)[0][-1]


def test_hint_counts_only_the_calls_that_are_kept() -> None:
    assert str(skipped(history(3, 8, first=3), 8).hint).startswith("in calls #3-#7 every rank")


def test_no_hint_where_the_history_has_an_exception() -> None:
    past = history(3, 4)
    past[1] = (past[1][1], *past[1][1:])
    assert skipped(past, 4).hint is None


def test_no_hint_where_the_call_was_not_left_out() -> None:
    past = {rank: ops[:-1] for rank, ops in history(3, 4).items()}
    assert skipped(past, 3).hint is None


def test_hint_when_nobody_was_there_before() -> None:
    past = {rank: ops[:1] for rank, ops in history(3, 2).items()}
    assert skipped(past, 1).hint == "no rank called from train.py:63 in call #0"


def test_no_hint_and_nothing_agreed_without_history() -> None:
    verdict = skipped({}, 4)
    assert (verdict.hint, verdict.agreed) == (None, None)


def message(sent: TensorSpec, wanted: TensorSpec) -> Mismatch | None:
    world = group(2)
    return find_pair_mismatch(
        Op(0, "send", world, peer=1, tag=0, inputs=(sent,), site=STEP),
        Op(1, "recv", world, peer=0, tag=0, outputs=(wanted,), site=SYNC),
    )


def test_send_and_receive_agree_in_dtype_and_elements() -> None:
    assert message(spec(4, 2), spec(8)) is None
    assert message(spec(4, device="cuda:0"), spec(4)) is None


@pytest.mark.parametrize(
    ("wanted", "differs"),
    [
        (spec(3), ("shape",)),
        (spec(4, dtype="int64"), ("dtype",)),
        (spec(5, dtype="int64"), ("dtype", "shape")),
    ],
)
def test_send_and_receive_that_differ(wanted: TensorSpec, differs: tuple[str, ...]) -> None:
    verdict = message(spec(4), wanted)
    assert verdict is not None
    assert (verdict.differs, verdict.ranks, verdict.number) == (differs, (), None)
    assert [block.ranks for block in verdict.blocks] == [(0,), (1,)]


def test_the_table_is_frozen() -> None:
    with pytest.raises(TypeError):
        RULES["barrier"] = RULES["send"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "gather", "broadcast"])
def test_a_thousand_ops(name: str) -> None:
    ops = correct_ops(name, 1024)
    ops[700] = edit(ops[700], "dtype")
    meeting = Meeting(ops[0].group, 0, tuple(ops))
    verdict = find_mismatch(meeting)
    assert verdict is not None and verdict.ranks == (700,)


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(agreement).failed == 0
    assert doctest.testmod(hints).failed == 0


def test_the_lines_of_the_call_before_are_told_where_they_differ() -> None:
    world = group(4)

    def at(rank: int, number: int, name: str, line: int) -> Op:
        return Op(rank, name, world, number, site=Site("eval.py", line, "main", ""))

    past = {rank: (at(rank, 0, "barrier", 7 if rank == 0 else 10),) for rank in world.ranks}
    ops = tuple(
        at(rank, 1, "all_reduce" if rank == 0 else "barrier", 8 if rank == 0 else 11)
        for rank in world.ranks
    )
    found = find_mismatch(Meeting(world, 1, ops, history=past))
    assert found is not None and "at different lines in the call before" in str(found.hint)
    others = rank_list(world.ranks[1:])
    assert f"barrier(): rank 0 at eval.py:7, {others} at eval.py:10" in render(found).replace(
        "\n            ", " "
    )
    same = {rank: (at(rank, 0, "barrier", 7),) for rank in world.ranks}
    found = find_mismatch(Meeting(world, 1, ops, history=same))
    assert found is not None and (found.from_lines, found.hint) == ((), None)


# -- signatures ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(RULES) - {"send", "recv"}))
def test_a_signature_holds_what_the_rule_compares(name: str) -> None:
    rule, facts = RULES[name], signed_facts(name)
    assert facts.root == ("root" in rule.agree)
    assert facts.reduce_op == ("reduce op" in rule.agree)
    assert bool(facts.tensors) == ("shape" in rule.agree)
    assert bool(facts.layout) == ("memory layout" in rule.agree)


def test_calls_of_uneven_lists_have_no_signature() -> None:
    specs = TensorSpec("float32", (1,)), TensorSpec("float32", (2,))
    assert signature_of(Form("all_gather", 0, inputs=specs[:1], outputs=specs)) is None
    alike = (specs[0], specs[0])
    assert signature_of(Form("all_gather", 0, inputs=specs[:1], outputs=alike)) is not None
    assert signature_of(Form("all_to_all_single", 0, input_splits=(1, 2))) is None
