"""Every error of both distributions, as the code writes them: one name is one kind of failure, with one way out."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ruvrun import errors

ROOT = Path(__file__).parents[2]
KINDS = {
    name: kind.exit_code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.RuvError)
}
WITHOUT_HINT = {"call-wrong"}  # its message says which parameter takes what


class Raised(NamedTuple):
    """One place where an error is made, and the texts of it that stand there as they are."""

    where: str
    kind: str
    refs: list[str]
    messages: list[str]
    hints: list[str | None]


def texts(node: ast.expr | None) -> list[str | None]:
    """The constants that ``node`` may be; of a text with values in it none is known whole."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    return []


def end_of(node: ast.expr | None) -> list[str]:
    """How a message ends, as far as that stands there."""
    if isinstance(node, ast.JoinedStr):
        return end_of(node.values[-1])
    return [text for text in texts(node) if text is not None]


def raised() -> Iterator[Raised]:
    for package in ("ruvcompile", "runtime/ruvrun"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                    hint = next((word.value for word in node.keywords if word.arg == "hint"), None)
                    first, second, *_ = [*node.args, None, None]
                    refs = [text for text in texts(first) if text is not None]
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield Raised(where, node.func.id, refs, end_of(second), texts(hint))


ALL = list(raised())


def test_there_are_errors() -> None:
    assert len([each for each in ALL if each.refs]) > 300


def test_a_name_stands_for_one_exit_code() -> None:
    """Whoever handles an error in a script does so by its name and its exit code; both say the same."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for each in ALL:
        for ref in each.refs:
            found[ref].setdefault(KINDS[each.kind], each.where)
    twice = {ref: places for ref, places in found.items() if len(places) > 1}
    assert not twice, f"give one of each two another name: {twice}"


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.where)
def test_an_error_has_the_form_of_all(each: Raised) -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", ref) for ref in each.refs), "words with dashes"
    assert not any(message.endswith((".", "!")) for message in each.messages), "a sentence without a full stop"
    assert None not in each.hints or set(each.refs) <= WITHOUT_HINT, "say what to do"
    assert not any(re.search(r"\?$|[^.]\.$", hint or "") for hint in each.hints), (
        "a hint is no question, and no sentence"
    )
