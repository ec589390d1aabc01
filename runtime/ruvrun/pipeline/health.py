"""What is known of the stages of a manifest's pipelines: their states, since when, and why.

A pipeline is *whole* when all its stages are ready. Requests are served as soon as one is, and as long: then the status
is ``degraded`` while a stage of another is missing, and only ``ready`` when none is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruvrun.frames import State
from ruvrun.manifest import Pipeline

READY = "ready"
DEGRADED = "degraded"
NO_ANSWER = "no answer yet"
# What the whole is, when no pipeline is: the worst there is.
_WORST_FIRST = ("refused", "lost", "waiting", "loading")


@dataclass
class Node:
    """A stage's node. ``since`` is seconds of the wall clock."""

    pipeline: int
    stage: int
    since: float
    state: str = "waiting"
    why: str = NO_ANSWER


class Health:
    """The states of all stages.

    Args:
        pipelines: the manifest's, in order.
        clock: seconds since 1970.
    """

    def __init__(self, pipelines: Sequence[Pipeline], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.nodes = {
            placed.node: Node(number, placed.stage, clock())
            for number, pipeline in enumerate(pipelines)
            for placed in pipeline.stages
        }

    @property
    def ready(self) -> bool:
        """Whether every stage answers."""
        return all(node.state == READY for node in self.nodes.values())

    def whole(self, pipeline: int) -> bool:
        """Whether every stage of this pipeline answers."""
        return all(node.state == READY for node in self.nodes.values() if node.pipeline == pipeline)

    def note(self, message: State) -> bool:
        """Take a stage's state; False when it is no news."""
        node = self.nodes.get(message.node)
        if node is None or (node.state, node.why) == (message.state, message.why):
            return False
        if node.state != message.state:
            node.since = self._clock()
        node.state, node.why = message.state, message.why
        return True

    def missing(self) -> list[str]:
        """A line for every stage that is not ready."""
        return [
            f"{name} (stage {node.stage}) is {node.state}{f': {node.why}' if node.why else ''}"
            for name, node in self.nodes.items()
            if node.state != READY
        ]

    def body(self, id: str) -> dict[str, Any]:
        """The body of GET /health of the manifest ``id``."""
        states = {node.state for node in self.nodes.values()}
        nodes = [
            {
                "node": name,
                "pipeline": node.pipeline,
                "stage": node.stage,
                "state": node.state,
                "since": _utc(node.since),
                "why": node.why,
            }
            for name, node in self.nodes.items()
        ]
        worst = next((state for state in _WORST_FIRST if state in states), READY)
        return {
            "status": DEGRADED if worst != READY and whole_of(nodes) else worst,
            "id": id,
            "nodes": nodes,
        }


def whole_of(nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of the pipelines that serve, by the ``nodes`` of a health body."""
    missing = {node.get("pipeline", 0) for node in nodes if node.get("state") != READY}
    return sorted({node.get("pipeline", 0) for node in nodes} - missing)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
