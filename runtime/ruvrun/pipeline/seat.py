"""Where a stage sits in its pipeline: who sends to it, to whom it sends, and where all of them listen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ruvrun.manifest import LOCAL, Manifest
from ruvrun.pipeline.links import Address
from ruvrun.placement import Endpoints
from ruvrun.session import HEAD, STAGE


@dataclass(frozen=True)
class Seat:
    """A stage among the others.

    Attributes:
        place: which stage it is of how many, for people.
        head: the head and where it is, for people.
        first: whether the head sends to it, and no stage.
        next: to whom it sends: the stage behind it, or the head.
        listens: where its peers connect to.
        calls, expects: whom it calls, and who may call it; as ``Links`` takes them.
    """

    place: str
    head: str
    first: bool
    next: str
    listens: Address
    calls: Mapping[str, tuple[str, Address]]
    expects: Mapping[str, Collection[str]]


def seat_of(manifest: Manifest, node: str, endpoints: Endpoints) -> Seat:
    """The seat of a node that holds a stage."""
    place = manifest.place_of(node)
    assert place is not None, f"{node} holds no stage"
    nodes = [placed.node for placed in manifest.pipeline[place[0]].stages]
    index, head, at = nodes.index(node), manifest.head.node, endpoints.head
    last = index == len(nodes) - 1
    behind = head if last else nodes[index + 1]
    to, here = at if last else endpoints.nodes[behind], endpoints.nodes[node]
    several = f" in pipeline {place[0]}" if len(manifest.pipeline) > 1 else ""
    return Seat(
        place=f"stage {index} of {len(nodes)}{several}",
        head=f"{head} ({'this machine' if at.host == LOCAL else f'{at.host}:{at.port}'})",
        first=index == 0,
        next=behind,
        listens=(here.host, here.port),
        calls={behind: (HEAD if last else STAGE, (to.host, to.port))},
        expects={HEAD: [head], STAGE: nodes[index - 1 : index] if index else []},
    )
