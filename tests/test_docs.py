"""Paths that the documentation names exist, and its words are plain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
ROOTS = (ROOT, ROOT / "src" / "phalanx", ROOT / "docs", ROOT / "src" / "phalanx" / "testing")
_PATH = re.compile(r"`([\w./-]+/[\w./-]+\.(?:py|md|txt|toml|yml)|[\w./-]+/)`")
ELSEWHERE = ("torch/", "test/", "build/", ".venv")
"""Of torch, or made by a command."""

PHRASES = (
    "hear of",
    "heard of",
    "in vain",
    "whoever is in no",
    "the version before",
    "is none.",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_it_names_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    named = {path for path in _PATH.findall(text) if not path.startswith(ELSEWHERE)}
    missing = {
        path
        for path in named
        if not any((root / path).exists() for root in (*ROOTS, page.parent))
    }
    assert missing == set()


def test_the_picture_of_the_house_has_every_folder() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("src/phalanx/")[2]
    listed = set(re.findall(r"^ {2,6}(\w+)/", tree.partition("```")[0], flags=re.M))
    assert listed == {
        file.parent.name for file in (ROOT / "src/phalanx").rglob("*/__init__.py")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_words_are_plain(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [phrase for phrase in PHRASES if phrase in text] == []
