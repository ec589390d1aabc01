"""The folder a build is written in, which takes the place of the output all at once.

Everything is written into a hidden folder beside the output, ``.NAME.partial-PID``. When it is complete it changes
places with what was there, in one system call, so that at every moment a whole build lies under the name: the old
one or the new one. Where the file system cannot do that, the old build is renamed away first, and the next build
puts it back if this one died in between. What a killed build left behind, there and among the temporary files, is
removed by the next one. A folder that is not a build of ours is never replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ruvcompile.errors import REFUSALS, InputError, MachineError
from ruvrun.bundle import BUNDLES
from ruvrun.manifest import MANIFEST
from ruvrun.scratch import sweep

SCRATCH = ("ruvcompile", "ruvrun")
"""Names of folders among the temporary files: of our own, and of those who measure for us."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def is_build(place: Path) -> bool:
    """Whether there is a whole build in ``place``."""
    return (place / MANIFEST).is_file() and (place / BUNDLES).is_dir()


@contextmanager
def workspace(
    output: Path,
    needed: Iterable[Path | None] = (),
    *,
    ours: Callable[[Path], bool] = is_build,
    what: str = "build",
) -> Iterator[Path]:
    """A folder to build in, which takes ``output``'s place when the block ends without an error.

    Args:
        output: what is there goes; only what is ``ours`` does.
        needed: files and folders of the user's that are not to go with it.
        ours: whether a folder is one that may go.
        what: such a folder is, for people.

    Raises:
        InputError: ``output`` exists and is not ours, or something that is needed lies in it.
        MachineError: it cannot be written there.
    """
    place = Path(os.path.realpath(output))  # unlike Path.resolve, this leaves links that lead in a circle as they are
    work = place.parent / f".{place.name}.partial-{os.getpid()}"
    try:
        _sweep(place)
        sweep(Path(tempfile.gettempdir()), *SCRATCH)
        if os.path.lexists(place) and not (place.is_dir() and (ours(place) or not any(place.iterdir()))):
            raise InputError(
                "output-not-ours", f"{output} exists and is not a {what}", hint="choose another -o, or remove it"
            )
        _check_outside(place, output, needed)
        _make(work)
        yield work
        _take_place(work, place)
    except OSError as error:
        if error.errno not in REFUSALS or not _concerns(error.filename, work):
            raise
        raise MachineError(
            "output-unwritable",
            f"cannot write {output}: {error.strerror}",
            hint="make room, or choose another place with -o",
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_outside(place: Path, output: Path, needed: Iterable[Path | None]) -> None:
    """Refuse to replace a folder together with what the build is made from, which may be the only copy."""
    for each in needed:
        # A link in it goes too, wherever it leads.
        places = [Path(os.path.realpath(each.parent), each.name), Path(os.path.realpath(each))] if each else []
        if any(path.is_relative_to(place) for path in places):
            raise InputError(
                "output-holds-input",
                f"{each} lies in {output}, which this build would replace",
                hint="move it out of there, or choose another -o",
            )


def _make(work: Path) -> None:
    try:
        work.mkdir(parents=True)
    except (FileNotFoundError, FileExistsError) as error:
        # In /proc nothing can be made, and under a link that leads nowhere or in a circle neither: it is the place
        # that refuses, whatever the system calls it.
        raise NotADirectoryError(errno.ENOTDIR, "no folder can be made there", str(work)) from error


def _concerns(filename: str | None, work: Path) -> bool:
    """Whether an error is about our folder (or one above it), and not about a file that was only read."""
    path = Path(filename or work)
    return path.is_relative_to(work) or work.is_relative_to(path)


def _take_place(work: Path, place: Path) -> None:
    """Put ``work`` where ``place`` is; what was there is at ``work`` afterwards, or gone."""
    if not place.exists():
        try:
            work.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another build of the same output was faster, by a hair
    if not _exchange(work, place):
        old = place.parent / f".{place.name}.replaced-{os.getpid()}"
        place.rename(old)
        work.rename(place)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places in one step; False where library, kernel or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0


def _sweep(place: Path) -> None:
    """Put back a build that was renamed away, and remove what killed builds of this output left behind."""
    left = re.compile(rf"\.{re.escape(place.name)}\.(partial|replaced)-(\d+)")
    for path in place.parent.glob(".*"):
        match = left.fullmatch(path.name)
        if match and not Path(f"/proc/{match.group(2)}").exists():
            if match.group(1) == "replaced" and not place.exists():
                path.rename(place)
            else:
                shutil.rmtree(path, ignore_errors=True)
