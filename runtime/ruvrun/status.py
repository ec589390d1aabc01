"""What a running service says of itself, as lines for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruvrun import client
from ruvrun.errors import UnreachableError
from ruvrun.manifest import load_manifest
from ruvrun.pipeline.health import whole_of
from ruvrun.placement import LOOPBACK, endpoints, manifest_path, read_nodes


def find_head(target: str, port: int = client.HTTP_PORT) -> tuple[str, str | None, str]:
    """The head's URL, the manifest's id where a manifest was given, and the head's name for messages."""
    if "://" in target or not Path(target).exists():
        looks_like_file = target.endswith(".toml") or "/" in target.split("://")[-1].rstrip("/")
        if "://" not in target and looks_like_file:
            load_manifest(Path(target))  # tells what is wrong with it
        return client.base_url(target), None, target
    path = manifest_path(Path(target))
    manifest = load_manifest(path)
    host = endpoints(manifest, read_nodes(path)).head.host
    where = "this machine" if host == LOOPBACK else host
    return f"http://{host}:{port}", manifest.id, f"{manifest.head.node} ({where})"


def status(target: str) -> dict[str, Any]:
    """GET /health of the head of ``target``, with its URL.

    Raises:
        UnreachableError: it is not there (exit 6, naming it), or it serves another manifest.
    """
    url, wanted, name = find_head(target)
    try:
        body = client.health(url)
    except UnreachableError as error:
        told = f"at {url}" if wanted is None else f"{name}, at {url},"
        raise UnreachableError(
            error.ref, f"the head {told} does not answer", context=error.context, hint=error.hint
        ) from None
    if wanted is not None and body.get("id") != wanted:
        raise UnreachableError(
            "other-build",
            f"the head at {url} serves another build",
            context=[f"it serves {str(body.get('id'))[:12]}, this manifest is {wanted[:12]}"],
            hint="give the head's URL, or start this manifest",
        )
    return {"url": url, **body}


def is_ready(body: Mapping[str, Any]) -> bool:
    """Whether every stage answers."""
    return bool(body.get("nodes")) and all(node.get("state") == "ready" for node in body["nodes"])


def serves(body: Mapping[str, Any]) -> bool:
    """Whether requests are taken: one pipeline has all its stages."""
    return bool(whole_of(body.get("nodes", [])))


def one_line(body: Mapping[str, Any]) -> str:
    """``ready: 2 of 2 stages at URL``, or what is missing."""
    nodes = body.get("nodes", [])
    missing = ", ".join(f"{node['node']} {node['state']}" for node in nodes if node.get("state") != "ready")
    if is_ready(body):
        return f"ready: {len(nodes)} of {len(nodes)} stages at {body['url']}"
    if serves(body):
        return f"degraded: {len(whole_of(nodes))} of {_pipelines(nodes)} pipelines serve, {missing} at {body['url']}"
    return f"not ready: {missing or 'no stages'} at {body['url']}"


def lines(body: Mapping[str, Any]) -> list[str]:
    """A small table: one line per stage. The pipeline of each is told where there are several."""
    nodes = body.get("nodes", [])
    told = ("pipeline", "stage", "node", "state", "since", "why")[0 if _pipelines(nodes) > 1 else 1 :]
    rows = [tuple(name if name != "why" else "" for name in told)]
    rows += [tuple(_cell(node, name) for name in told) for node in nodes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(told) - 1)]
    table = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    return [one_line(body), f"id {str(body.get('id'))[:12]}", *table]


def _cell(node: Mapping[str, Any], name: str) -> str:
    value = node.get(name)
    return "" if value is None else str(value)


def _pipelines(nodes: Sequence[Mapping[str, Any]]) -> int:
    return len({node.get("pipeline", 0) for node in nodes})
