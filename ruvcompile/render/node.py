"""Render what a person or an init system needs on one node: install script, systemd unit, environment, notes.

A target overrides any of these templates by a file of the same name in its own ``templates`` folder. Values that end
in a shell script or a unit file pass through the ``shell`` filter or are refused here: a node name comes from a
person's file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from ruvcompile.errors import InputError
from ruvcompile.render.templates import SUFFIX, render
from ruvcompile.targets import Target, requirements

FILES = (
    *("install.sh", "lib/places.sh", "lib/machine.sh", "lib/release.sh", "lib/service.sh", "uninstall.sh", "ruvrun"),
    *("ruvrun.service", "ruvrun.env", "requirements.txt", "machine.toml", "README.md"),
)

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class NodeFacts:
    """What the templates may say about one node.

    ``model`` is the model's name as in ``/v1/models``; ``id`` the manifest's. ``stage`` is the number of the
    stage it holds, None for a node that only has the head; ``stages`` how many there are. ``head`` tells
    whether the head process runs here, ``head_node`` where it runs. ``port`` is the node's link port.
    """

    model: str
    id: str
    node: str
    stage: int | None
    stages: int
    head: bool
    head_node: str
    address: str
    port: int
    cpus: tuple[int, ...] = ()
    threads: int = 0

    @property
    def folder(self) -> str:
        """What the model is called on a node, unless install.sh is told otherwise: safe in a path and a unit name."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.model).strip("-._") or "model"

    @property
    def service(self) -> str:
        """Name of the service on the node."""
        return f"ruvrun@{self.folder}"


def render_node(target: Target, facts: NodeFacts) -> dict[str, bytes]:
    """The files of a node's ``node/`` folder that come from templates, by their paths in it.

    Raises:
        InputError: a template is missing or wrong, or a name cannot stand in a unit file.
    """
    for what, name in (("node", facts.node), ("head", facts.head_node)):
        if not _SAFE.fullmatch(name):
            raise InputError(
                "node-name", f"{what} {name!r} cannot be a name", hint="use letters, digits, dot, dash, underscore"
            )
    return {name: _render(target, name, facts) for name in (*FILES, *target.deploy)}


def _render(target: Target, name: str, facts: NodeFacts) -> bytes:
    known = {field.name: getattr(facts, field.name) for field in fields(facts)}
    known |= {"service": facts.service, "folder": facts.folder}
    packages = list(requirements(target, head=facts.head))
    return render(target.template(name + SUFFIX), {**known, "target": target, "packages": packages})
