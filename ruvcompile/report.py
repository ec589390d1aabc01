"""``report.html``: what a build is, what it will do and why, in one file that needs nothing else.

A plain first version: tables. With a run of ``ruvrun bench`` it shows reality beside the plan. The same build gives
the same bytes, so nothing here knows what time it is. ``plan.json`` beside it holds the plan's figures, out of which
the report can be written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import msgspec

from ruvcompile.errors import InputError
from ruvcompile.quantities import show_bytes
from ruvrun.costs import COSTS, CostTable, load_costs
from ruvrun.manifest import Manifest, load_manifest

_T = TypeVar("_T")

REPORT = "report.html"
FIGURES = "plan.json"


class RunStage(msgspec.Struct, frozen=True):
    """What a run says of one stage; None where the node told nothing."""

    node: str
    busy: float | None = None
    measured_ms: float | None = None


class Run(msgspec.Struct, frozen=True):
    """What the report shows of the JSON of ``ruvrun bench``: one run, not a sweep."""

    stages: list[RunStage]
    id: str = ""
    verdict: str = ""
    streams: int = 1
    tokens_per_s: float | None = None
    items_per_s: float | None = None


def write(directory: Path, manifest: Manifest, figures: Mapping[str, Any], costs: CostTable, run: Run | None) -> Path:
    """Write the report of the build in ``directory``.

    Args:
        figures: the JSON of the plan.
        costs: the rows the plan was made from.
        run: what really happened, or None.
    """
    text = _template().render(manifest=manifest, plan=figures, costs=costs, run=run)
    (directory / REPORT).write_text(text, "utf-8")
    (directory / FIGURES).write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", "utf-8")
    return directory / REPORT


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bytes"] = show_bytes
    return environment.from_string(resources.files("ruvcompile").joinpath("report.html.j2").read_text("utf-8"))


def rewrite(manifest_path: Path, run: Path | None) -> Path:
    """Write the report of a build again from what lies beside its manifest, with a run beside the plan."""
    manifest = load_manifest(manifest_path)
    directory = manifest_path.parent
    figures = _json(directory / FIGURES, dict[str, Any], "plan of this build", "build again")
    measured = None
    if run is not None:
        measured = _json(
            run, Run, "bench result", "make it with: ruvrun bench MANIFEST --streams N --json > bench.json"
        )
        _require_same(run, measured, manifest_path, manifest)
    return write(directory, manifest, figures, load_costs(directory / COSTS), measured)


def _require_same(path: Path, run: Run, manifest_path: Path, manifest: Manifest) -> None:
    """That the run is one of this build: what it computes, on the nodes it has."""
    graph = manifest.program.kind == "graph"
    if (run.items_per_s if graph else run.tokens_per_s) is None or run.id not in ("", manifest.id):
        what = "another model or another build"
    elif [stage.node for stage in run.stages] != [one.node for each in manifest.pipeline for one in each.stages]:
        what = "other nodes"
    else:
        return
    raise InputError("run-of-another-build", f"{path} is of {what} than {manifest_path}", hint="bench this build")


def _json(path: Path, kind: type[_T], what: str, hint: str) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise InputError("file-missing", f"no {what} at {path}", hint="check the path") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {path}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("json-wrong", f"{path} is not a {what}", context=[str(error)], hint=hint) from None
