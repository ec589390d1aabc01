"""What is there for a while only: folders that go when the block ends, and files that are not whole yet.

A process that is killed cannot remove its own, and what lies in them may be as large as a model. So a folder's name
tells the process it is of, and whoever makes the next one of that name in the same place removes those whose process is
no longer there.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ruvrun.errors import MachineError


@contextmanager
def scratch_folder(name: str, place: Path | None = None) -> Iterator[Path]:
    """A new folder below ``place`` (None: where temporary files go), called ``NAME-PROCESS-...``.

    Raises:
        OSError: also what is raised in the block. Of one that names no file, as of a full disk, it names the folder.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    sweep(place, name)
    with tempfile.TemporaryDirectory(prefix=f"{name}-{os.getpid()}-", dir=place) as folder:
        try:
            yield Path(folder)
        except OSError as error:
            if error.filename is None and error.errno is not None:
                error.filename = folder
            raise


def write_whole(output: Path, data: bytes) -> None:
    """Write a file that appears all at once, in the place of what was there.

    Raises:
        MachineError: it cannot be written: the disk is full, say. What was there stays.
    """
    partial = partial_of(output)
    try:
        partial.write_bytes(data)
        partial.replace(output)
    except OSError as error:
        what = f"cannot write {output}: {error.strerror}"
        raise MachineError("output-unwritable", what, hint="make room there, or see that it may be written") from None
    finally:
        partial.unlink(missing_ok=True)


def partial_of(output: Path) -> Path:
    """Where a file is until it is whole."""
    return output.with_name(f".{output.name}.partial-{os.getpid()}")


def sweep(place: Path, *names: str) -> None:
    """Remove the folders of these names that killed processes left behind; of other users' nothing can be removed."""
    left = re.compile(rf"({'|'.join(map(re.escape, names))})-(\d+)-\w+")
    for path in place.iterdir():
        found = left.fullmatch(path.name)
        if found and not Path("/proc", found.group(2)).exists():
            shutil.rmtree(path, ignore_errors=True)
