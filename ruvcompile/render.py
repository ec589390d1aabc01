"""Render what a person or an init system needs on one node: install script, systemd unit, environment, notes.

Pure: facts in, bytes out. Templates are Jinja2, shared ones in ``targets/_shared/templates``; a target
overrides any of them by a file of the same name in its own ``templates`` folder. An undefined name in a
template is an error, so that a template can never quietly render a hole. Values that end in a shell script or
a unit file pass through the ``shell`` filter or are refused here: a node name comes from a person's file.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields
from functools import cache

import jinja2

from ruvcompile.errors import InputError
from ruvcompile.targets import Target

SUFFIX = ".j2"
FILES = ("install.sh", "uninstall.sh", "ruvrun.service", "ruvrun.env", "README.md")
EXECUTABLE = 0o755
PLAIN = 0o644

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
    def service(self) -> str:
        """Name of the service and of the folder on the node: safe in a path and a unit name."""
        return "ruvrun-" + re.sub(r"[^A-Za-z0-9._]+", "-", self.model).strip("-.")


def render_node(target: Target, facts: NodeFacts) -> dict[str, bytes]:
    """The files of a node's ``node/`` folder that come from templates, by name.

    Raises:
        InputError: a template is missing or wrong, or a name cannot stand in a unit file.
    """
    for what, name in (("node", facts.node), ("head", facts.head_node)):
        if not _SAFE.fullmatch(name):
            raise InputError(
                "node-name", f"{what} {name!r} cannot be a name", hint="use letters, digits, dot, dash, underscore"
            )
    return {name: _render(target, name, facts) for name in FILES}


def mode_of(name: str) -> int:
    """Permission bits of a rendered file."""
    return EXECUTABLE if name.endswith(".sh") else PLAIN


@cache
def _template(text: str) -> jinja2.Template:
    """The compiled template; compiling one takes as long as all the rest of a small build."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["shell"] = shlex.quote
    return environment.from_string(text)


def _render(target: Target, name: str, facts: NodeFacts) -> bytes:
    path = target.template(name + SUFFIX)
    known = {field.name: getattr(facts, field.name) for field in fields(facts)} | {"service": facts.service}
    packages = [*target.packages, *(["ruvrun[head]"] if facts.head else [])]
    try:
        text = _template(path.read_text("utf-8")).render(**known, target=target, packages=packages)
    except OSError as error:
        raise InputError("template-missing", f"no template {path}: {error.strerror}", hint="add it") from None
    except jinja2.TemplateError as error:
        raise InputError(
            "template-wrong", f"{path} cannot be rendered", context=[str(error)], hint="correct it"
        ) from None
    return text.encode()
