"""Arguments that look like secrets, and those that do not."""

from __future__ import annotations

import doctest

import pytest

from phalanx.cli.main import main
from phalanx.engines.look import look_client
from phalanx.options import Options
from phalanx.shown import secret_words
from phalanx.shown.secret_words import fold_secrets

SECRETS = [
    ["--api-key", "s3cr3t"],
    ["--api_key=s3cr3t"],
    ["--token", "-s3cr3t"],
    ["-token", "s3cr3t"],
    ["--hub.hfToken", "s3cr3t"],
    ["--wandb_api_key", "s3cr3t"],
    ["--db-password=s3cr3t with=more"],
    ["WANDB_API_KEY=s3cr3t"],
    ["+logger.secret=s3cr3t"],
    ["--data", "postgres://me:s3cr3t@host/db"],
    ["--hub", "hf_s3cr3ts3cr3ts3cr3ts3cr3t"],
    ["--url=https://host/?a=sk-s3cr3ts3cr3ts3cr3ts3cr3t"],
    ["--aws", "AKIAS3CR3TS3CR3TS3CR"],
]


@pytest.mark.parametrize("words", SECRETS, ids=" ".join)
def test_secrets_are_folded_and_the_rest_stays(words) -> None:
    folded = fold_secrets(["train.py", *words, "--lr", "1"])
    assert "s3cr3t" not in " ".join(folded).lower() and "HIDDEN" in " ".join(folded)
    assert (folded[0], folded[-2:]) == ("train.py", ["--lr", "1"])
    assert len(folded) == len(words) + 3


@pytest.mark.parametrize(
    "line",
    [
        "--tokenizer gpt2 --max-tokens 8 --pad-token <pad> --eos_token=</s>",
        "--key value --sort-key=name --token --lr 3 --password",
        "--passes 3 --secretary x s3://bucket/path user@host:dir lr=0.1",
        "sk-learn hf_model config.yaml --seed -1",
    ],
)
def test_other_words_stay(line) -> None:
    assert fold_secrets(line.split()) == line.split()


def test_the_replay_line_has_no_secret(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fails.py").write_text(
        "import sys, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "assert sys.argv[1:] == ['--api-key', 's3cr3t', '--lr=1']\n"
        "raise ValueError\n"
    )
    line = ["-n", "2", "--record", "run.phx", "fails.py", "--api-key", "s3cr3t", "--lr=1"]
    assert main(["run", *line]) == 1
    told = capsys.readouterr()
    assert "fails.py --api-key HIDDEN --lr=1" in told.err
    assert main(["report", "run.phx", "--html", "page.html", "--trace", "run.json"]) == 0
    assert main(["report", "run.phx"]) == 0
    told = capsys.readouterr()
    assert "fails.py" in told.out and "s3cr3t" not in told.out + told.err
    assert b"s3cr3t" not in b"".join(path.read_bytes() for path in tmp_path.glob("*.json"))


def test_phalanx_look_shows_no_secret(tmp_path, monkeypatch) -> None:
    cmdline = tmp_path / "cmdline"
    cmdline.write_bytes(b"python\0train.py\0--token\0s3cr3t\0\x1b[2J\0")
    opened = open
    monkeypatch.setattr(
        look_client, "open", lambda path, *how, **more: opened(cmdline, "rb"), raising=False
    )
    assert look_client._command_of(7) == "python train.py --token HIDDEN \\x1b[2J"


def test_options_of_phalanx_are_no_secrets() -> None:
    line = Options(ranks=2, seed=7).command("train.py", "--token=abc")
    assert line == "phalanx run --ranks 2 --seed 7 train.py --token=HIDDEN"


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(secret_words) == doctest.TestResults(failed=0, attempted=4)
