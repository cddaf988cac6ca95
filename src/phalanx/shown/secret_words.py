"""Arguments of a program that look like secrets, folded before a command line is shown.

Used by everything that prints or records the command of a run. It looks at names of options
(`--api-key`, `--hf_token=`, `trainer.password=`) and at values whose form says what they are. A
secret that is named otherwise is not seen. Must never change what a program is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "HIDDEN"

_SECRET = frozenset(
    {"token", "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets"}
    | {"credential", "credentials", "apikey", "authorization", "bearer"}
)
"""Names whose last word is one of these are of secrets."""
_KEYS = frozenset(
    {"api", "access", "account", "auth", "encryption", "private", "secret", "signing", "wandb"}
)
"""What stands before `key` in the name of a secret."""
_OF_TEXT = frozenset(
    {"bos", "cls", "end", "eos", "image", "mask", "max", "new", "next", "num", "pad", "per"}
    | {"sep", "special", "start", "stop", "unk", "video", "word"}
)
"""What stands before `token` where it is a piece of text."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAMED = re.compile(r"(?P<name>[-+~]{0,2}[A-Za-z_][\w.\-/]*)=(?P<value>.+)", re.DOTALL)
_FORM = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_\-]{20,}|gh[opsru]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w\-]{16,}|xox[abprs]-[\w\-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}"
    r"|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)
"""Tokens of services that many use, and JSON web tokens."""
_IN_ADDRESS = re.compile(r"(?<=://)(?P<user>[^/\s:@]*):[^/\s@]+(?=@)")


def fold_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command line, with a placeholder for each value that looks secret.

    >>> fold_secrets(["train.py", "--api-key", "abc", "--lr=1e-3", "--hub-token=xyz"])
    ['train.py', '--api-key', 'HIDDEN', '--lr=1e-3', '--hub-token=HIDDEN']
    >>> fold_secrets(["--pad-token", "<pad>", "--max-tokens", "8", "s3://me:pass@host/x"])
    ['--pad-token', '<pad>', '--max-tokens', '8', 's3://me:HIDDEN@host/x']
    """
    folded: list[str] = []
    follows = False
    for word in words:
        is_flag = word.startswith("-") and not word.lstrip("-").isdigit()
        if follows and not (is_flag and word.startswith("--")):
            folded.append(HIDDEN)
            follows = False
            continue
        named = _NAMED.fullmatch(word)
        if named is not None and is_secret_name(named["name"]):
            folded.append(f"{named['name']}={HIDDEN}")
        else:
            folded.append(_IN_ADDRESS.sub(rf"\g<user>:{HIDDEN}", _FORM.sub(HIDDEN, word)))
        follows = is_flag and named is None and is_secret_name(word)
    return folded


def is_secret_name(name: str) -> bool:
    """Whether an option, variable or setting of that name holds a secret.

    >>> [is_secret_name(name) for name in ("--hfToken", "WANDB_API_KEY", "db.passwd")]
    [True, True, True]
    >>> [is_secret_name(name) for name in ("--tokenizer", "--num-token", "--key", "eos_token")]
    [False, False, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return before not in _OF_TEXT
    return last in _SECRET or (last == "key" and before in _KEYS)
