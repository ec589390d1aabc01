"""What the front needs of the thread that drives the pipeline, and how it says that it is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ruvrun.elements import Value
from ruvrun.engine import Lost, Request, Token
from ruvrun.openai import ApiError
from ruvrun.pipeline.health import READY


class Driver(Protocol):
    """What the front needs of the thread that drives the pipeline. Every method may be called in any thread."""

    def next_id(self) -> int:
        """A number that no other request has."""

    def submit(self, request: Request, on_event: Callable[[Token | Lost], None]) -> None:
        """Take a request; ``on_event`` is called in the driver's thread. Raises RuvError where it cannot."""

    def call(self, tensors: Mapping[str, Value]) -> Future[dict[str, Value]]:
        """Run a graph on these inputs; the future gets its outputs. Raises RuvError where it cannot."""

    def cancel(self, id: int) -> None:
        """Forget a request; unknown and finished ones are ignored."""

    def health(self) -> Mapping[str, Any]:
        """``{"status", "id", "nodes": [{"node", "stage", "state", "since", "why"}]}``."""

    def load(self) -> tuple[int, int]:
        """How many requests run, and how many wait."""


def is_ready(driver: Driver) -> bool:
    """Whether every stage answers."""
    return all(node["state"] == READY for node in driver.health()["nodes"])


def not_ready(driver: Driver) -> ApiError | None:
    """The refusal while a stage is missing, naming it; None when all are there."""
    missing = [
        f"node {node['node']} (stage {node['stage']}) is {node['state']}" + (f": {node['why']}" if node["why"] else "")
        for node in driver.health()["nodes"]
        if node["state"] != READY
    ]
    return ApiError(503, f"The model is not ready: {'; '.join(missing)}", code="not_ready") if missing else None
