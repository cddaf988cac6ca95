"""What a machine lacks is said in a sentence."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import tempfile
import threading

import pytest

import phalanx
from phalanx.cli.main import main
from phalanx.core import core_affinity
from phalanx.core.core_affinity import CoreAffinity
from phalanx.engines.machine_limits import limits_named
from phalanx.engines.processes import fork_server
from phalanx.errors import UsageError


def refuse(number: int):
    def call(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EAGAIN, "x"), "no ranks: the system starts no more processes"),
        (RuntimeError("can't start new thread"), "no ranks: the system starts no more threads"),
        (OSError(errno.EMFILE, "x"), "no more files can be open (the limit is "),
        (OSError(errno.ENOMEM, "x"), "has no memory for it"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "this machine has no address 127.0.0.1"),
        (OSError(errno.EAFNOSUPPORT, "x"), "engine='threads', which needs no network"),
        (FileNotFoundError(2, "No usable temporary directory found"), "set TMPDIR to one"),
    ],
    ids=lambda each: None if isinstance(each, str) else type(each).__name__,
)
def test_what_is_missing_and_what_to_do(error, text) -> None:
    with pytest.raises(UsageError) as found, limits_named("no ranks"):
        raise error
    assert text in str(found.value) and "\n" not in str(found.value)
    assert found.value.__cause__ is error


@pytest.mark.parametrize("error", [FileNotFoundError("a"), RuntimeError("b"), ValueError("c")])
def test_other_errors_go_on(error) -> None:
    with pytest.raises(type(error)) as found, limits_named("no ranks"):
        raise error
    assert found.value is error


def test_no_more_processes(monkeypatch) -> None:
    monkeypatch.setattr(fork_server, "_one", None)
    monkeypatch.setattr(subprocess, "_fork_exec", refuse(errno.EAGAIN), raising=False)
    monkeypatch.setattr(subprocess, "_USE_POSIX_SPAWN", False)
    with pytest.raises(UsageError, match="could not be started: the system starts no more"):
        phalanx.run(print, ranks=2, engine="processes")


def test_no_address(monkeypatch) -> None:
    monkeypatch.setattr(socket, "create_server", refuse(errno.EADDRNOTAVAIL))
    with pytest.raises(UsageError, match=r"has no address 127\.0\.0\.1"):
        phalanx.run(print, ranks=2, engine="processes")


def test_no_more_threads(monkeypatch) -> None:
    start = threading.Thread.start

    def second_fails(self: threading.Thread) -> None:
        if self.name == "rank-1":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", second_fails)
    with pytest.raises(UsageError, match="the system starts no more threads"):
        phalanx.run(print, ranks=2)


def test_no_temporary_folder(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "train.py").write_text("")

    def none(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in []")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", none)
    line = ["run", "--engine", "torchrun", "-n", "2", str(tmp_path / "train.py")]
    assert main(line) == 2
    told = capsys.readouterr().err
    assert "set TMPDIR" in told and told.count("\n") == 1


def test_a_rank_with_all_files_open_leaves_threads_where_they_were(monkeypatch) -> None:
    """Its own error is told, and not that the threads cannot be listed."""
    affinity = CoreAffinity()
    affinity.together = True
    monkeypatch.setattr(core_affinity.os, "listdir", refuse(errno.EMFILE))
    affinity.scatter()
    assert not affinity.together
