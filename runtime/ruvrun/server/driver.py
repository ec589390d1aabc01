"""What the front needs of the thread that drives the pipeline, and how it says that it is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ruvrun.elements import Value
from ruvrun.engine import Lost, Request, Token
from ruvrun.openai import ApiError
from ruvrun.pipeline.health import READY, whole_of


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
        """``{"status", "id", "nodes": [{"node", "pipeline", "stage", "state", "since", "why"}]}``."""

    def load(self) -> tuple[int, int]:
        """How many requests run, and how many wait."""

    def put_backs(self) -> int:
        """How often a sequence was put back, as space ran out, since the head began."""


def serves(driver: Driver) -> bool:
    """Whether requests are taken: one pipeline has all its stages."""
    return bool(whole_of(driver.health()["nodes"]))


def not_ready(driver: Driver) -> ApiError | None:
    """The refusal while every pipeline misses a stage, naming those; None when one is whole."""
    nodes = driver.health()["nodes"]
    if whole_of(nodes):
        return None
    missing = [
        f"node {node['node']} (stage {node['stage']}) is {node['state']}" + (f": {node['why']}" if node["why"] else "")
        for node in nodes
        if node["state"] != READY
    ]
    return ApiError(503, f"The model is not ready: {'; '.join(missing)}", code="not_ready")
