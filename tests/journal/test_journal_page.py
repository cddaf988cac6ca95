"""The page about the journal tells the truth: its examples run and its schema is complete."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from phalanx.journal.events import KINDS, VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|text)\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    shown = io.StringIO()
    for language, text in blocks:
        if language == "text":
            assert shown.getvalue() == text
            continue
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(text, "journal.md", "exec"), names)
    assert names["waited"] >= 0
    assert names["found"] == ["mismatch"]


def test_every_kind_and_field_is_described() -> None:
    assert f"## Schema, version {VERSION}" in PAGE
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGE, flags=re.MULTILINE))
    for kind, event in KINDS.items():
        described = set(re.findall(r"`(\w+)`", rows[kind].rpartition(" | ")[2]))
        assert described >= set(event._fields[4:]), kind
