"""What pip installs on a node."""

from __future__ import annotations

import re

import ruvrun
from ruvcompile.targets.nouns import Target

_OURS = re.compile(r"ruvrun(\[[a-z,]+\])?")


def requirements(target: Target, *, head: bool) -> tuple[str, ...]:
    """What pip installs on a node of this target: ``ruvrun`` of this very release, with the extras it needs.

    Args:
        target: with the back end that the node got.
        head: whether the head is there.
    """
    packages = [*target.packages, *(["ruvrun[head]"] if head else [])]
    if not any(package.startswith("ruvrun") for package in packages):
        packages.insert(0, "ruvrun")
    return tuple(f"{each}=={ruvrun.__version__}" if _OURS.fullmatch(each) else each for each in packages)
