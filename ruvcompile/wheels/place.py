"""Put the wheels of ``--wheels`` into the bundles: ``node/wheels/``, with their hashes beside them.

They are a node's own, as all in ``node/`` is: no stage depends on them, and ``bundle.toml`` does not name them, so a
new release of a package changes no stage. ``install.sh`` checks them against ``SHA256SUMS``. Bundles for equal machines
share the files on disk, with each other and with the shelf, where the file system can do that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

import ruvrun
from ruvcompile.errors import FitError, UsageError
from ruvcompile.lower.weights import linked
from ruvcompile.options import Options
from ruvcompile.progress import Progress
from ruvcompile.quantities import show_bytes
from ruvcompile.stages import copy_file
from ruvcompile.targets import Target, requirements
from ruvcompile.wheels.kind import OLDEST, Kind
from ruvcompile.wheels.own import NAME, own_metadata
from ruvcompile.wheels.resolve import python_of
from ruvcompile.wheels.shelf import SHELF, Shelf, dump_sums
from ruvrun.bundle import BUNDLES

WHEELS = "node/wheels"
SUMS = "SHA256SUMS"


def shelf_of(options: Options) -> Shelf:
    """The shelf of a build: beside its output."""
    return Shelf(options.output.parent / SHELF)


def check_wheels(options: Options, targets: Mapping[str, Target], progress: Progress, shelf: Shelf) -> None:
    """What of ``--wheels`` can be known before anything is measured: whether there are such wheels, and a network.

    Args:
        targets: of the fleet's nodes, by name, with the back ends that they may get.

    Raises:
        RuvError: no wheel, no network, or nobody to put wheels in for.
    """
    if not options.wheels:
        return
    away = {node.target for node in options.fleet.nodes if not node.local}
    if not away:
        what = "--wheels says nothing to nodes that are processes of this machine: they use what is installed here"
        raise UsageError("wheels-local", what, hint="leave it out, or name other machines with --nodes or --fleet")
    with progress.step("wheels"):
        for target in (targets[name] for name in sorted(away)):
            if lacking := [python for python in target.pythons if python not in options.wheels]:
                progress.note(f"no wheels for Python {', '.join(lacking)}, which systems of {target.name} have")
            sure = target if len(target.backends) == 1 else target.among(())
            for kind in kinds(target, options.wheels):
                shelf.wheels(requirements(sure, head=False), kind)


def place_wheels(
    work: Path, nodes: Mapping[str, tuple[Target, bool]], options: Options, progress: Progress, shelf: Shelf
) -> None:
    """Put them into the bundles in ``work``.

    Args:
        work: where the build is made.
        nodes: of every bundle by the node's name, its target with the back end it got, and whether the head is there.

    Raises:
        RuvError: a wheel cannot be had.
    """
    if not options.wheels:
        return
    told: dict[str, list[str]] = {}
    for name, (target, head) in nodes.items():
        if options.fleet.node(name).local:
            continue
        asked = requirements(target, head=head)
        files: dict[str, str] = {}
        with progress.step("wheels"):
            for kind in kinds(target, options.wheels):
                files |= shelf.wheels(asked, kind)
        size = _write(files, shelf.folder, work / BUNDLES / name / WHEELS)
        what = f"{len(files)} wheels, {show_bytes(size)}, for Python {', '.join(options.wheels)} on {target.machine}"
        told.setdefault(what, []).append(name)
    for what, names in told.items():
        progress.note(f"{what}: {', '.join(names)}")


def kinds(target: Target, pythons: Sequence[str]) -> list[Kind]:
    """What is installed on: such a machine, with each of these Pythons.

    Raises:
        UsageError: ``wheels-none``: no ``ruvrun`` for that Python.
        FitError: ``wheels-machine``: nobody makes wheels for such a processor.
    """
    if target.machine not in OLDEST:
        what = f"there are no wheels for {target.machine}, the processor of target {target.name}"
        raise FitError("wheels-machine", what, hint=f"there are for {', '.join(OLDEST)}; leave --wheels out")
    able = SpecifierSet(python_of(own_metadata()))
    found = []
    for python in pythons:
        kind = Kind(target.machine, python, target.libc, target.page)
        if not able.contains(f"{python}.0"):
            what = f"there is no wheel of {NAME} {ruvrun.__version__} for {kind}: it needs Python {able}"
            raise UsageError("wheels-none", what, hint="leave that Python out of --wheels")
        found.append(kind)
    return found


def _write(files: Mapping[str, str], shelf: Path, folder: Path) -> int:
    """Put these files of the shelf into a bundle's folder, with their hashes; how many bytes they are."""
    folder.mkdir(parents=True)
    for name in files:
        if not linked(shelf / name, folder / name):
            copy_file(shelf / name, folder / name)
    (folder / SUMS).write_text(dump_sums(dict(files)), "utf-8")
    return sum((folder / name).stat().st_size for name in files)
