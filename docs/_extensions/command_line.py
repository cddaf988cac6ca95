"""The directive `command-line`: the options of a command, taken from its argparse parser.

    ```{command-line} run
    ```

writes usage, description, every group of options and the epilog of `phalanx run`. Without an
argument it documents `phalanx` itself. So the page cannot say anything that `--help` does not.
"""

from __future__ import annotations

import argparse
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from phalanx.cli.main import make_parser


class CommandLine(Directive):
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        parser = make_parser()
        if self.arguments:
            parser = _commands(parser)[self.arguments[0]]
        return list(describe(parser))


def describe(parser: argparse.ArgumentParser) -> list[nodes.Node]:
    usage = parser.format_usage().removeprefix("usage: ").strip()
    written: list[nodes.Node] = [_block(usage)]
    written += _paragraphs(parser.description)
    for group in parser._action_groups:
        shown = [a for a in group._group_actions if a.help != argparse.SUPPRESS]
        if not shown:
            continue
        written.append(nodes.rubric("", (group.title or "").capitalize()))
        written += _paragraphs(group.description)
        written.append(_options(shown))
    if parser.epilog:
        written.append(_block(parser.epilog.rstrip()))
    return written


def _options(actions: list[argparse.Action]) -> nodes.Node:
    listed = nodes.definition_list()
    for action in actions:
        for term, text in _rows(action):
            item = nodes.definition_list_item()
            item += nodes.term("", "", nodes.literal(term, term))
            item += nodes.definition("", nodes.paragraph(text, text))
            listed += item
    return listed


def _rows(action: argparse.Action) -> list[tuple[str, str]]:
    if isinstance(action, argparse._SubParsersAction):
        return [(each.dest, each.help or "") for each in action._choices_actions]
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    words = ", ".join(action.option_strings) + value
    return [(words.strip(), action.help or "")]


def _paragraphs(text: str | None) -> list[nodes.Node]:
    parts = (text or "").strip().split("\n\n")
    return [nodes.paragraph(part, " ".join(part.split())) for part in parts if part]


def _block(text: str) -> nodes.Node:
    return nodes.literal_block(text, text, language="none")


def _commands(parser: argparse.ArgumentParser) -> Any:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    raise LookupError("phalanx has no commands")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
