"""Results that say the same become one line."""

from __future__ import annotations

from phalanx.conformance.case_model import Outcome, Result, Table
from phalanx.conformance.folded_results import (
    render_differences,
    render_findings,
    render_refusals,
)
from phalanx.conformance.known_differences import CaseDifference


def table(*rows: tuple[str, Outcome, str, str]) -> Table:
    results = tuple(
        Result(name, "family", "op", 3, outcome, reason, rule)
        for name, outcome, reason, rule in rows
    )
    return Table("threads", "gloo", "2.13.0", 1.0, results)


def test_alike_findings_are_one_line_with_a_count_and_the_first_ids() -> None:
    wrong = [
        (f"op/{i}@3", "WRONG", f"rank {i}: result: 1.0 instead of {i}.5 at 3, 1 of 9 wrong", "")
        for i in range(5)
    ]
    found = table(("a@3", "pass", "", ""), ("b@3", "fail", "hung", ""), *wrong)  # type: ignore[arg-type]
    assert render_findings(found).splitlines() == [
        "WRONG 5 x rank 0: result: 1.0 instead of 0.5 at 3, 1 of 9 wrong "
        "(op/0@3, op/1@3, op/2@3, ...)",
        "fail  b@3: hung",
    ]
    assert render_findings(table(("a@3", "pass", "", ""))) == ""


def test_other_outcomes_and_reasons_are_not_alike() -> None:
    found = table(
        ("a@3", "fail", "text", ""), ("b@3", "WRONG", "text", ""), ("c@3", "fail", "other", "")
    )
    assert len(render_findings(found).splitlines()) == 3


def test_refusals_without_a_rule_say_why() -> None:
    found = table(
        ("a@2", "refuse", "ranks 0,1: TypeError: no", ""),
        ("a@3", "refuse", "ranks 0,1,2: TypeError: no", ""),
        ("b@3", "refuse", "known", "dtype"),
    )
    assert render_refusals(found).splitlines() == [
        "2 refused without a known rule:",
        "  2 x TypeError: no (e.g. a@2)",
    ]
    assert render_refusals(table(("b@3", "refuse", "known", "dtype"))) == ""


def test_differences_are_folded_by_their_outcomes() -> None:
    found = [CaseDifference("a@3", "pass", "fail"), CaseDifference("b@3", "pass", "fail")]
    assert render_differences(found, "x.json") == (
        "DIFFERS 2 x pass here, fail in x.json (a@3, b@3)"
    )
    assert render_differences(found[:1], "x.json") == "DIFFERS a@3: pass here, fail in x.json"
