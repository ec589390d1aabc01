"""Where wheels are kept that were downloaded once: ``.ruvcompile/wheels`` beside the output.

Beside the wheels lies one list for each set (``sets/``): the files of it, with their hashes. A set that is listed and
whole is taken as it is, so the next build carries the same bytes and asks nobody. Whoever wants newer ones removes the
folder. What is downloaded appears by rename, and a wheel whose hash is not the listed one is fetched again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from packaging.requirements import Requirement

from ruvcompile.errors import MachineError
from ruvcompile.wheels.download import download
from ruvcompile.wheels.kind import Kind
from ruvcompile.wheels.own import NAME, own_metadata, own_wheel
from ruvcompile.wheels.pages import too_fine
from ruvcompile.wheels.resolve import resolve
from ruvrun.bundle import file_sha256
from ruvrun.scratch import scratch_folder, write_whole

SHELF = ".ruvcompile/wheels"
PIP = "pip"
_SETS = "sets"

Download = Callable[[Sequence[Requirement], Kind, Path], Sequence[Path]]


@dataclass(frozen=True)
class Shelf:
    """A folder of wheels, and the sets that were made of them.

    ``get`` downloads what is missing (``download``).
    """

    folder: Path
    get: Download = download

    def wheels(self, requirements: Iterable[str], kind: Kind) -> dict[str, str]:
        """The file names of a set, with their hashes; the files are on the shelf.

        Raises:
            RuvError: a wheel cannot be had, or not be loaded on such a machine.
        """
        asked = sorted({*requirements, PIP})
        path = self.folder / _SETS / f"{kind.machine}-{kind.python}-{_key(asked, kind)}.txt"
        own = self._put_own()
        found = self._listed(path)
        if found is None:
            found = self._resolved(asked, kind, own)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, dump_sums(found).encode())
        return {**found, own.name: file_sha256(own)}

    def _listed(self, path: Path) -> dict[str, str] | None:
        """A set that was made before, where all of it is there."""
        if not path.is_file():
            return None
        listed = load_sums(path.read_text("utf-8"))
        files = {name: self.folder / name for name in listed}
        whole = all(file.is_file() and file_sha256(file) == listed[name] for name, file in files.items())
        return listed if listed and whole else None

    def _resolved(self, asked: Sequence[str], kind: Kind, own: Path) -> dict[str, str]:
        """The set without the wheel of ``ruvrun``, ``own``, which is packed anew by every build."""
        number = count()
        with scratch_folder("wheels", self.folder) as folder:

            def fetch(wanted: Sequence[Requirement]) -> list[Path]:
                others = [each for each in wanted if each.name != NAME]
                paths = self.get(others, kind, folder / str(next(number))) if others else ()
                got = dict(zip([each.name for each in others], paths, strict=True))
                return [got.get(each.name, own) for each in wanted]

            found = [path for path in resolve(asked, kind, fetch) if path != own]
            for path in found:
                _check_pages(path, kind)
            hashes = {path.name: file_sha256(path) for path in found}
            for path in found:
                path.replace(self.folder / path.name)
        return hashes

    def _put_own(self) -> Path:
        """Put the wheel of ``ruvrun`` there, as it is now."""
        name, data = own_wheel()
        path = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            write_whole(path, data)
        return path


def dump_sums(files: dict[str, str]) -> str:
    """Hashes as ``sha256sum`` writes and checks them."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))


def load_sums(text: str) -> dict[str, str]:
    """File names with their hashes; lines that are none are passed over."""
    pairs = (line.split("  ", 1) for line in text.splitlines())
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def _key(asked: Sequence[str], kind: Kind) -> str:
    """What a set depends on, as a hash: what is asked for, of which ``ruvrun``, for what machine."""
    text = "\n".join([*asked, own_metadata(), str(kind.platforms), str(kind.page)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_pages(wheel: Path, kind: Kind) -> None:
    if wrong := too_fine(wheel, kind.page):
        name, size = next(iter(wrong.items()))
        raise MachineError(
            "wheels-pages",
            f"{wheel.name} cannot be loaded on a machine with memory pages of {kind.page} bytes",
            context=[f"{name} is made for pages of {size} bytes"],
            hint="ask for another version of it in the target's packages",
        )
