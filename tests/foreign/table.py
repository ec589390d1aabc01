"""The committed table: what became of every case, with the versions it holds for.

``python -m tests.foreign`` writes it. Its counts are those of the sentence in the README.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnxruntime

from tests.foreign.verdict import PASSED, REFUSED, WRONG, Verdict

PATH = Path(__file__).with_name("table.toml")
_HEAD = """\
# Every node case that the onnx package generates, built and run in stages. Written by `python -m tests.foreign`.
# A case passes when it comes out as it wants, in one stage and in two at every legal cut.
"""


def versions() -> dict[str, str]:
    """What the verdicts depend on."""
    return {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}


def dump(verdicts: Sequence[Verdict]) -> str:
    """The table as text.

    Raises:
        ValueError: a case failed; there is no place for that.
    """
    if failed := [each for each in verdicts if each.failed]:
        raise ValueError(f"{len(failed)} cases failed, the first is {failed[0].name}: {failed[0].what}")
    counts = {what: sum(each.what == what for each in verdicts) for what in (PASSED, REFUSED, WRONG)}
    lines = [_HEAD, *(f'{name} = "{version}"' for name, version in versions().items()), "", "[counts]"]
    lines += [f"cases = {len(verdicts)}", *(f'"{what}" = {count}' for what, count in counts.items())]
    lines += [f'"cuts that were run" = {sum(each.cuts for each in verdicts)}', "", "[cases]"]
    lines += [f'{each.name} = "{_told(each)}"' for each in verdicts]
    return "\n".join(lines) + "\n"


def read() -> tuple[dict[str, str], dict[str, str]]:
    """The versions the committed table is for, and what it says of each case, without the number of cuts."""
    table = tomllib.loads(PATH.read_text("utf-8"))
    return {name: table[name] for name in versions()}, {
        name: told.partition(", ")[0] for name, told in table["cases"].items()
    }


def _told(verdict: Verdict) -> str:
    return f"{verdict.what}, {verdict.cuts} cuts" if verdict.cuts else verdict.what
