"""What was measured of pipelines, written into the manifest of their build: beside the plan, and no part of the id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ruvcompile.verify.equality import Comparison
from ruvrun.bundle import find_bundles
from ruvrun.manifest import MANIFEST, Equality, dump_manifest, load_manifest
from ruvrun.scratch import write_whole


def record(manifest_path: Path, found: Sequence[Comparison]) -> None:
    """Write what was found in place of what was found before, into the manifest and its copies in the bundles."""
    manifest = load_manifest(manifest_path)
    told = [
        Equality(
            pipeline=each.pipeline,
            backends=list(each.backends),
            floats=each.exact,
            tokens=each.found.tokens,
            top1_agreement=_short(each.found.top1),
            mean_kl=_short(each.found.kl),
            max_logit_diff=_short(each.found.largest),
        )
        for each in found
    ]
    data = dump_manifest(msgspec.structs.replace(manifest, equality=told))
    for path in [manifest_path, *(bundle / MANIFEST for bundle in find_bundles(manifest_path, manifest).values())]:
        write_whole(path, data)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
