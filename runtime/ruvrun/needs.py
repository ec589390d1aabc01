"""What stages need of a machine's memory, and whether there is that much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ruvrun.amounts import show_bytes
from ruvrun.backends import positions
from ruvrun.errors import FitError
from ruvrun.manifest import PACKED, RUNTIME_BYTES, SERVING_BYTES, Manifest


@dataclass(frozen=True)
class Need:
    """What one stage needs of its machine's memory, in bytes."""

    stage: int
    node: str
    weights: int
    kv: int
    runtime: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.runtime

    def __str__(self) -> str:
        weights, kv, runtime, total = map(show_bytes, (self.weights, self.kv, self.runtime, self.total))
        return f"stage {self.stage} on {self.node}: {total} (weights {weights}, key/value {kv}, runtime {runtime})"


def needs(manifest: Manifest, nodes: Sequence[str], *, context: int, streams: int) -> list[Need]:
    """The memory that the stages of ``nodes`` need when loaded with this key/value space."""
    found = []
    for name in nodes:
        place = manifest.place_of(name)
        if place is None:
            continue
        stage = next(entry for entry in manifest.stage if entry.index == place[1].stage)
        kv = stage.kv.bytes_per_token * positions(stage.backend, context, streams) if stage.kv else 0
        planned = manifest.plan.of(name)
        if planned is None:
            found.append(Need(stage.index, name, int(stage.weight_bytes * PACKED), kv, RUNTIME_BYTES + SERVING_BYTES))
        else:
            own = planned.runtime_bytes + planned.working_bytes
            found.append(Need(stage.index, name, planned.weight_bytes, kv, own))
    return found


def require_memory(wanted: Sequence[Need], available: int, *, context: int, streams: int) -> None:
    """Refuse what does not fit this machine, with the sum.

    Raises:
        FitError: the stages need more than ``available`` bytes.
    """
    total = sum(need.total for need in wanted)
    if total <= available:
        return
    kv = sum(need.kv for need in wanted)
    raise FitError(
        "memory-short",
        f"{show_bytes(total)} are needed here, and this machine has {show_bytes(available)} available",
        context=[*map(str, wanted), f"key/value {show_bytes(kv)} = {streams} streams x {context} tokens"],
        hint="lower --context or --streams, or build for more nodes",
    )
