"""The partition problem as nouns: a chain of units, nodes in order, and what it costs. Times in ms, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Border:
    """The cut behind a unit: whether it is legal, and the bytes per token (or per call) that cross it."""

    legal: bool
    wire_bytes: int


@dataclass(frozen=True)
class Shared:
    """Bytes that units ``first`` and ``second`` both count, and a stage that holds both needs once."""

    first: int
    second: int
    size: int


@dataclass(frozen=True)
class Device:
    """One node as the partition sees it.

    ``unit_ms[i]`` is the time of unit i here; ``memory`` is usable bytes; ``send_ms_per_byte`` what handing the cut on
    costs this node.
    """

    name: str
    unit_ms: tuple[float, ...]
    memory: int
    send_ms_per_byte: float = 0.0


@dataclass(frozen=True)
class Problem:
    """A chain of units to be cut into one stage for each of ``devices``, in their order.

    ``unit_bytes[i]`` is what unit i needs in memory: weights as loaded and key/value space; of a weight that several
    units read, ``shared`` joins each reader with the next, so it is part of what either counts. ``runtime_bytes`` is
    what a stage process needs besides. ``borders[k - 1]`` is the cut between the first k units and the rest.
    ``objective`` is ``throughput`` (the slowest stage) or ``latency`` (the sum).
    """

    devices: tuple[Device, ...]
    unit_bytes: tuple[int, ...]
    borders: tuple[Border, ...]
    runtime_bytes: int
    objective: str = "throughput"
    shared: tuple[Shared, ...] = ()


@dataclass(frozen=True)
class Partition:
    """A solution: ``cuts`` (sizes of the prefixes), each stage's time, and how good it is proven to be.

    ``bound_ms`` holds for every partition of this problem; ``gap`` is (value - bound) / value.
    """

    cuts: tuple[int, ...]
    stage_ms: tuple[float, ...]
    stage_bytes: tuple[int, ...]
    bound_ms: float
    gap: float

    @property
    def bottleneck_ms(self) -> float:
        """Time of the slowest stage."""
        return max(self.stage_ms)

    @property
    def latency_ms(self) -> float:
        """Sum over the stages."""
        return sum(self.stage_ms)
