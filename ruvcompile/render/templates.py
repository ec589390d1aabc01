"""Templates: Jinja2, facts in, bytes out.

Those that come with the compiler are in ``targets/_shared/templates``. An undefined name in a template is an error, so
that a template can never quietly render a hole. What a person wrote and ends in a shell script passes through the
filter ``shell``, what ends in YAML through ``quoted``: a string of JSON is one of YAML, and has no way out of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2

from ruvcompile.errors import InputError

SUFFIX = ".j2"
SCRIPTS = (".sh", ".py")
LAUNCHER = "ruvrun"
EXECUTABLE = 0o755
PLAIN = 0o644


def render(path: Path, facts: Mapping[str, Any]) -> bytes:
    """The text of the template at ``path`` with these facts.

    Raises:
        InputError: the template is missing or wrong.
    """
    try:
        return _template(path.read_text("utf-8")).render(facts).encode()
    except OSError as error:
        raise InputError("template-missing", f"no template {path}: {error.strerror}", hint="add it") from None
    except jinja2.TemplateError as error:
        raise InputError(
            "template-wrong", f"{path} cannot be rendered", context=[str(error)], hint="correct it"
        ) from None


def mode_of(name: str) -> int:
    """Permission bits of a rendered file."""
    return EXECUTABLE if name.endswith(SCRIPTS) or name == LAUNCHER else PLAIN


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
    environment.filters["quoted"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(text)
