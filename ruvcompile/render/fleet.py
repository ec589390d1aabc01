"""Render what brings the bundles of a build to their machines and keeps them there: the folder ``deliver/`` of a build.

Scripts over ssh, and what an existing scheduler takes for the same: Ansible, Docker, Kubernetes, HAProxy. Where the
nodes are is read from ``nodes.toml`` when a script runs, wherever that is possible, so that an address is written down
once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ruvcompile.errors import InputError
from ruvcompile.render.node import NodeFacts
from ruvcompile.render.templates import SUFFIX, render
from ruvcompile.targets import Target, requirements
from ruvcompile.targets.nouns import SHARED, TEMPLATES, data_root

DELIVER = "deliver"
HTTP_PORT = 8000
FOLDER = "fleet"

PLAIN: Mapping[str, str] = {
    **{name: name for name in ("deliver.sh", "smoke.sh", "fleet.sh", "back.sh", "remote.sh", "files.py", "README.md")},
    **{f"ansible/{name}": f"ansible/{name}" for name in ("ansible.cfg", "inventory.py", "deliver.yml")},
    **{f"docker/{name}": f"docker/{name}" for name in ("compose.yaml", "Dockerfile.bundle")},
    "docker/wheels/README.md": "docker/wheels.md",
    "docker/.env": "docker/dotenv",
    "k8s/keys.sh": "k8s/keys.sh",
    "haproxy/00-front.cfg": "haproxy/00-front.cfg",
}
"""Files that every fleet has, and their templates."""

_DEVICES = {"drm": "/dev/dri", "accel": "/dev/accel"}
_ARCH = {"aarch64": "arm64", "x86_64": "amd64"}
_LABEL = 40


def render_fleet(
    nodes: Sequence[tuple[NodeFacts, Target]], *, kind: str, version: str, most: int, wheels: bool
) -> dict[str, bytes]:
    """The files of ``deliver/`` by path in it.

    Args:
        nodes: the facts of every node, and its target with the one back end that it uses.
        kind: of the program, ``decoder`` or ``graph``.
        version: of the runtime, for the names of images.
        most: requests that the head takes at a time.
        wheels: whether the bundles hold what install.sh installs.

    Raises:
        InputError: a template is missing or wrong, or two nodes have names that Kubernetes takes for the same.
    """
    label = _label("ruvrun-" + nodes[0][0].folder)[:_LABEL].rstrip("-")
    views = [_view(facts, target) for facts, target in nodes]
    _require_distinct(views)
    head = next(view for view in views if view["head"])
    kinds = {(target.backend, target.machine, target.resources) for _, target in nodes}
    known = {
        "id": nodes[0][0].id,
        "model": nodes[0][0].model,
        "folder": nodes[0][0].folder,
        "label": label,
        "nodes": views,
        "head": head,
        "machines": {facts.node: target.machine for facts, target in nodes},
        "arch": _ARCH.get(nodes[0][1].machine, nodes[0][1].machine) if len(kinds) == 1 else "",
        "resources": sorted({name for _, target in nodes for name in target.resources}),
        "led": [head, *(view for view in views if view is not head)],
        "decoder": kind == "decoder",
        "version": version,
        "http_port": HTTP_PORT,
        "most": most,
        "wheels": wheels,
        "place": f"/var/lib/ruvrun/{nodes[0][0].folder}",
    }
    made = {name: _rendered(template, known) for name, template in PLAIN.items()}
    made[f"haproxy/{known['folder']}.cfg"] = _rendered("haproxy/model.cfg", known)
    for shape in ("statefulsets", *(["leaderworkerset"] if known["arch"] else [])):
        for image in (False, True):
            file = f"{shape}{'-image' if image else ''}.yaml"
            made[f"k8s/{file}"] = _rendered(f"k8s/{shape}.yaml", {**known, "image": image, "file": file})
    for target in {target.backend: target for _, target in nodes}.values():
        made[f"docker/Dockerfile.{target.backend}"] = _rendered("docker/Dockerfile", {**known, **_runtime(target)})
    return made


def _rendered(template: str, known: Mapping[str, Any]) -> bytes:
    return render(data_root() / SHARED / TEMPLATES / FOLDER / (template + SUFFIX), known)


def _view(facts: NodeFacts, target: Target) -> dict[str, Any]:
    """What the templates may say about a node."""
    command = ["serve", "/bundle/manifest.toml", "--node", facts.node]
    if facts.head:
        command += ["--host", "0.0.0.0", "--port", str(HTTP_PORT)]
    return {
        **asdict(facts),
        "target": target,
        "label": _label(facts.node),
        "command": command,
        "devices": [_DEVICES.get(device, f"/dev/{device}") for device in target.devices],
        "limits": dict.fromkeys(target.resources, 1),
    }


def _runtime(target: Target) -> dict[str, Any]:
    """Of a back end's image; it can be the head, too."""
    return {"backend": target.backend, "drivers": target.drivers, "packages": requirements(target, head=True)}


def _label(name: str) -> str:
    """A name as Kubernetes takes it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _require_distinct(views: Sequence[Mapping[str, Any]]) -> None:
    labels: dict[str, str] = {}
    for view in views:
        other = labels.setdefault(view["label"], view["node"])
        if other != view["node"]:
            raise InputError(
                "node-names-alike",
                f"nodes {other!r} and {view['node']!r} have one name where only letters, digits and dashes count",
                hint="name one of them differently",
            )
