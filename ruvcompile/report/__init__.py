"""``report.html``: what a build is, what it will do and why, in one file that needs nothing else.

``contents`` are the nouns of ``plan.json``, ``gather`` makes what the plan's JSON lacks; ``graph``, ``stages`` and
``run`` say what is shown, as plain data; ``charts`` how; ``view`` puts it together and ``page`` writes it down.
``draw`` has the reasons for the library.

The same build gives the same bytes, so nothing here knows what time it is. With a run of ``ruvrun bench`` the report
shows reality beside the plan. Without the extra ``report`` it has the tables and no charts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ruvcompile.errors import InputError
from ruvcompile.report.contents import Figures
from ruvcompile.report.gather import gather
from ruvcompile.report.page import page_of
from ruvcompile.report.run import Run, require_same
from ruvcompile.report.view import view_of
from ruvrun.costs import COSTS, CostTable, load_costs
from ruvrun.manifest import Manifest, load_manifest, read_file
from ruvrun.scratch import write_whole

_T = TypeVar("_T")

REPORT = "report.html"
FIGURES = "plan.json"


def write(directory: Path, manifest: Manifest, figures: Mapping[str, Any], costs: CostTable) -> Path:
    """Write the report of the build in ``directory``, and beside it what it can be written from again.

    Args:
        figures: the JSON of the plan, with what ``gather`` found.
        costs: the rows the plan was made from.
    """
    data = json.dumps(figures, sort_keys=True, separators=(",", ":"))
    (directory / FIGURES).write_text(data + "\n", "utf-8")
    return _write(directory, manifest, msgspec.json.decode(data, type=Figures), costs, None)


def rewrite(manifest_path: Path, run: Path | None) -> Path:
    """Write the report of a build again from what lies beside its manifest, with a run beside the plan.

    Raises:
        InputError: a file is missing or not what it should be, or the run is of another build.
        MachineError: it cannot be written.
    """
    manifest = load_manifest(manifest_path)
    directory = manifest_path.parent
    figures = _json(directory / FIGURES, Figures, "plan of this build", "build again")
    measured = None
    if run is not None:
        measured = _json(
            run, Run, "bench result", "make it with: ruvrun bench MANIFEST --streams N --json > bench.json"
        )
        require_same(run, measured, manifest_path, manifest)
    return _write(directory, manifest, figures, load_costs(directory / COSTS), measured)


def _write(directory: Path, manifest: Manifest, figures: Figures, costs: CostTable, run: Run | None) -> Path:
    text = page_of(manifest, costs, view_of(figures, costs, manifest, run))
    write_whole(directory / REPORT, text.encode())
    return directory / REPORT


def _json(path: Path, kind: type[_T], what: str, hint: str) -> _T:
    text = read_file(path, what)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("json-wrong", f"{path} is not a {what}", context=[str(error)], hint=hint) from None


__all__ = ["gather", "rewrite", "write"]
