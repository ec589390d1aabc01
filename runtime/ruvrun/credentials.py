"""Secrets that an init system hands to a service (``LoadCredential=``), so that no user owns a file with them.

They lie in ``$CREDENTIALS_DIRECTORY``, which only this service can read, whatever the modes of the files say.
"""

from __future__ import annotations

import os
from pathlib import Path

LINK_KEY = "link.key"
API_KEYS = "api-keys"


def credential(name: str) -> Path | None:
    """The file of a secret that this process was given; None where it was given none, or an empty one."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(directory, name) if directory else None
    return path if path is not None and path.is_file() and path.stat().st_size else None
