"""What the source says about calls and branches."""

from __future__ import annotations

import gc

from phalanx.model import Site
from phalanx.source_text import (
    branch_around_word,
    is_added_branch,
    only_call_of,
    only_call_on,
    tree_of_text,
)

TEXT = """\
def fit(self):
    self.sampler.set_epoch(1)
    other.set_epoch(2)
    step()


other.set_epoch(3)
if rank == 0:
    log()
if rank == 0:
    log()
else:
    call()
for i in range(3):
    if rank == 0:
        continue
"""


def test_the_only_call_of_a_method(tmp_path) -> None:
    path = tmp_path / "program.py"
    path.write_text(TEXT, encoding="ascii")
    near = Site(str(path), 4, "fit", "step()")
    found = only_call_on(near, "self.sampler", "set_epoch")
    assert found == Site(str(path), 2, "fit", "self.sampler.set_epoch(1)")
    assert only_call_on(near, "other", "set_epoch") is None, "two lines"
    assert only_call_on(near, "self.sampler", "close") is None
    assert only_call_on(Site(str(path), 4, "fit", "other()"), "other", "set_epoch") is None


def test_the_only_call_by_name(tmp_path) -> None:
    path = tmp_path / "program.py"
    path.write_text(TEXT, encoding="ascii")
    near = Site(str(path), 4, "fit", "step()")
    assert only_call_of(near, "call") == Site(str(path), 13, "<module>", "call()")
    assert only_call_of(near, "log") is None, "two lines"
    assert only_call_of(near, "fit") is None


def test_a_word_that_a_branch_adds(tmp_path) -> None:
    path = tmp_path / "words.py"
    path.write_text(
        "table = {'a': 1, 'c': 3}\nif rank == 0:\n    table['b'] = 2\n    table['a'] = 3\n",
        encoding="ascii",
    )
    found = {word: branch_around_word(str(path), word) for word in "abc"}
    assert found == {"a": None, "b": 2, "c": None}


def test_branches_that_only_add_to_what_all_do(tmp_path) -> None:
    path = tmp_path / "branches.py"
    path.write_text(TEXT, encoding="ascii")
    added = [line for line in range(1, 17) if is_added_branch(str(path), line)]
    assert added == [8]
    assert not is_added_branch(str(tmp_path / "none.py"), 8)


def test_a_tree_that_another_thread_has_spoiled_is_none(monkeypatch) -> None:
    def spoiled(text: str) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=51, after=47)")

    assert tree_of_text("a = 1") is not None
    assert tree_of_text("a =") is None
    monkeypatch.setattr("ast.parse", spoiled)
    assert tree_of_text("a = 1") is None


def test_no_garbage_is_collected_while_a_tree_is_made(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr("ast.parse", lambda text: seen.append(gc.isenabled()))
    tree_of_text("a = 1")
    assert (seen, gc.isenabled()) == ([False], True)
