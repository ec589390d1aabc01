"""The wheels of a node: everything that ``node/install.sh`` installs there, so that it needs no network.

A node of another processor and another Python cannot be asked what it needs, and pip answers for the Python that it
runs in: the markers of requirements (``; python_version < "3.13"``) are evaluated here, whatever is downloaded. So the
set of wheels is found by ourselves, from the metadata of the wheels, for the machine that will install them:

1. ``kind`` says what a machine takes: platform tags down from its C library's, and the values of markers.
2. ``own`` packs the wheel of ``ruvrun`` itself out of what runs here.
3. ``resolve`` follows requirements until nothing is missing; ``download`` gets what it asks for, with pip.
4. ``pages`` looks whether what is native in them can be loaded with the machine's memory pages.
5. ``shelf`` keeps what was downloaded, and which wheels a set had: the next build takes the same, without a network.
6. ``place`` puts the sets into the bundles.

pip's own wheel is among them: a minimal Debian has neither pip nor venv, and a wheel can be run as it is.
"""

from __future__ import annotations

from ruvcompile.wheels.kind import Kind
from ruvcompile.wheels.place import WHEELS, check_wheels, place_wheels, shelf_of
from ruvcompile.wheels.shelf import Shelf

__all__ = ["WHEELS", "Kind", "Shelf", "check_wheels", "place_wheels", "shelf_of"]
