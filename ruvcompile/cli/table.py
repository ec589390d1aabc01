"""Text in columns, and in lines of a width: what all results of commands are made of."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

WIDTH = 96
"""Columns that a text may take."""

_NUMBER = re.compile(r"-|\d+(\.\d+)?( ([KMG]i)?B)?")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; columns of numbers to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    columns = [[row[column] for row in rows] for column in range(len(head))]
    right = [bool(column) and all(map(_NUMBER.fullmatch, column)) for column in columns]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, right, strict=True)
        return "  ".join(cell.rjust(width) if ends else cell.ljust(width) for cell, width, ends in cells).rstrip()

    return "\n".join(line(row) for row in [head, *rows])


def counted(number: int, what: str) -> str:
    """``1 stage``, ``2 stages``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def wrapped(text: str, indent: str = "") -> str:
    """Lines of at most ``WIDTH`` columns."""
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
