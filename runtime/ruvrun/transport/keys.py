"""Link keys: a CURVE pair per node, and the file that holds one.

The file is two lines, public key then secret key, 40 characters of Z85 each, readable by its owner only. The one in
a bundle (``node/link.key``) and the one the fleet keeps (``fleet.keys/NODE.secret``) are alike.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from ruvrun.errors import InputError, IntegrityError, MachineError

_LENGTH = 40
_RESTORE = "copy it again from where it is whole; of a fleet's keys, remove it to get a new one"


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, Z85. The secret is kept out of the representation, and so out of logs."""

    public: str
    secret: str = field(repr=False)


def make_keypair() -> KeyPair:
    """A new pair from the system's randomness."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def write_keys(path: Path, keys: KeyPair) -> None:
    """Write a key file, mode 0600 from its first byte on, in place of what is there."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{keys.public}\n{keys.secret}\n")
    part.replace(path)


def read_keys(path: Path, *, guarded: bool = False) -> KeyPair:
    """Read and check a key file: that it is one, that it is private, and that its two keys belong together.

    ``guarded`` is one in a folder that only this process can enter; then its own mode says nothing.

    Raises:
        InputError: there is none, or it is something else.
        MachineError: it may not be read.
        IntegrityError: others can read it, or the keys are of two pairs.
    """
    try:
        lines = path.read_text("ascii").split()
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError(
            "key-missing", f"no link key at {path}", hint="copy the whole bundle directory, node/ included"
        ) from None
    except (PermissionError, IsADirectoryError) as error:
        raise MachineError("key-unreadable", f"cannot read {path}: {error.strerror}", hint="run as its owner") from None
    except UnicodeDecodeError:
        lines, mode = [], 0
    if len(lines) != 2 or any(len(line) != _LENGTH for line in lines):
        raise InputError("key-wrong", f"{path} is not a key file", hint=_RESTORE)
    if mode & 0o077 and not guarded:
        raise IntegrityError("key-exposed", f"others can read the secret key in {path}", hint=f"chmod 600 {path}")
    try:
        derived = zmq.curve_public(lines[1].encode()).decode()
    except (ValueError, zmq.ZMQError):
        derived = ""
    if derived != lines[0]:
        raise IntegrityError("key-pair-wrong", f"the two keys in {path} do not belong together", hint=_RESTORE)
    return KeyPair(lines[0], lines[1])
