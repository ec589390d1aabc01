"""What every table of the two files is, and the kinds of values in them."""

from __future__ import annotations

from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]  # also the name of a folder
Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}\Z")]  # Z85
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Threads = Annotated[int, msgspec.Meta(ge=0, le=1024)]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What every table of the file is: immutable, and strict about keys."""
