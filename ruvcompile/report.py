"""``report.html``: what a build is, what it will do and why, in one file that needs nothing else.

A plain first version: tables. With a run of ``ruvrun bench`` it shows reality beside the plan. The same build gives
the same bytes, so nothing here knows what time it is. ``plan.json`` beside it holds the plan's figures, out of which
the report can be written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from ruvcompile.errors import InputError
from ruvcompile.units import show_bytes
from ruvrun.costs import CostTable, load_costs
from ruvrun.manifest import Manifest, load_manifest

REPORT = "report.html"
FIGURES = "plan.json"


def write(directory: Path, manifest: Manifest, figures: Mapping[str, Any], costs: CostTable, run: Any) -> Path:
    """Write the report of the build in ``directory``.

    Args:
        figures: the JSON of the plan.
        costs: the rows the plan was made from.
        run: JSON of ``ruvrun bench``, or None.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bytes"] = show_bytes
    text = resources.files("ruvcompile").joinpath("report.html.j2").read_text("utf-8")
    (directory / REPORT).write_text(
        environment.from_string(text).render(manifest=manifest, plan=figures, costs=costs, run=run),
        "utf-8",
    )
    (directory / FIGURES).write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", "utf-8")
    return directory / REPORT


def rewrite(manifest_path: Path, run: Path | None) -> Path:
    """Write the report of a build again from what lies beside its manifest, with a run beside the plan."""
    manifest = load_manifest(manifest_path)
    directory = manifest_path.parent
    figures = _json(directory / FIGURES, "plan of this build")
    measured = _json(run, "bench result") if run else None
    if measured is not None and "stages" not in measured:
        raise InputError(
            "run-wrong", f"{run} is not the JSON of one bench run", hint="ruvrun bench ... --json > bench.json"
        )
    return write(directory, manifest, figures, load_costs(directory / "costs.toml"), measured)


def _json(path: Path, what: str) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise InputError("file-missing", f"no {what} at {path}", hint="check the path") from None
    except msgspec.DecodeError as error:
        raise InputError("json-wrong", f"{path} is not JSON", context=[str(error)], hint="check the file") from None
