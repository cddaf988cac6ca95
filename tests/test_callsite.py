"""Where a call came from, also where there is little of a stack."""

from __future__ import annotations

import _thread
import threading

from phalanx import callsite


def here() -> callsite.Mark | None:
    return callsite.mark(1)


def test_the_users_line_is_found() -> None:
    site = callsite.resolve(here())
    assert site is not None and (site.function, site.source) == (
        "here",
        "return callsite.mark(1)",
    )


def test_a_stack_that_is_too_shallow_has_no_line() -> None:
    """As in autograd's threads for a GPU, which come from native code."""
    found: list[object] = []
    done = threading.Event()

    def body() -> None:
        found.append(callsite.mark(5))
        found.append(callsite.mark_of_main_thread())
        done.set()

    _thread.start_new_thread(body, ())
    assert done.wait(10)
    nowhere, main = found
    assert nowhere is None
    site = callsite.resolve(main)  # type: ignore[arg-type]
    assert site is not None and site.source == "assert done.wait(10)"


def test_a_file_outside_of_the_folder_is_found_by_what_is_shown(tmp_path, monkeypatch) -> None:
    program = tmp_path / "project" / "train.py"
    program.parent.mkdir()
    program.write_text("pass")
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    monkeypatch.setattr(callsite, "_outside", {})
    monkeypatch.setattr(callsite, "_programs", {})
    shown = "project/train.py"
    assert callsite.real_path(shown) == str(away / shown), "nothing is known of it"
    callsite.remember_program(str(program))
    assert callsite.real_path(shown) == str(program)
    callsite._programs.clear()
    assert callsite.shown_path(str(program)) == shown
    assert callsite.real_path(shown) == str(program)
    assert callsite.real_path(str(program)) == str(program)
