"""Bundles for install.sh: with a ruvrun that does nothing but judge, and a pip that does nothing but unpack.

The stub's ``doctor`` says what ``node/verdict`` in the bundle says (its own words for WORDS), and ends with that exit
code; without one, all is well. Scripts, Python, links and files are real; what pip and ruvrun make of real wheels is
for the system tests.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ruvcompile.render import NodeFacts, mode_of, render_node
from ruvcompile.targets import load_target
from tests.nodes import HEAD

FACTS = replace(HEAD, model="tiny", node="pi-0", stages=2, head_node="pi-0", address="pi-0.local", threads=0)
_JUDGE = """
import pathlib, sys
words = sys.argv[1:]
if words[0] == "doctor":
    verdict = pathlib.Path(next(word for word in words[1:] if word.startswith("/"))) / "node/verdict"
    if verdict.exists():
        code, text = verdict.read_text().split(" ", 1)
        print(text.replace("WORDS", " ".join(words)))
        sys.exit(int(code))
elif words[0] == "where":
    print(__file__)
"""
_UNPACK = """
import pathlib, sys, zipfile
words = sys.argv[1:]
target, wheels = (words[words.index(option) + 1] for option in ("--target", "--find-links"))
for wheel in pathlib.Path(wheels).glob("ruvrun-*.whl"):
    zipfile.ZipFile(wheel).extractall(target)
"""


@dataclass(frozen=True)
class Installed:
    """What lies below a root after install.sh was there."""

    root: Path
    name: str = "tiny"

    @property
    def home(self) -> Path:
        return self.root / "opt/ruvrun" / self.name

    @property
    def settings(self) -> Path:
        return self.root / "etc/ruvrun" / self.name

    @property
    def cache(self) -> Path:
        return self.root / "var/cache/ruvrun" / self.name

    @property
    def unit(self) -> Path:
        return self.root / f"etc/systemd/system/ruvrun@{self.name}.service"

    @property
    def releases(self) -> set[str]:
        return {path.name for path in (self.home / "releases").glob("*")}

    def named(self, link: str) -> str | None:
        path = self.home / link
        return path.readlink().name if path.is_symlink() else None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The installed ruvrun."""
        return subprocess.run([self.home / "ruvrun", *words], capture_output=True, text=True, check=False)


def write_bundle(directory: Path, weights: str = "one", *, target: str = "host", facts: NodeFacts = FACTS) -> Path:
    """A bundle of ``directory`` whose one layer holds ``weights``."""
    node = directory / "node"
    node.mkdir(parents=True)
    (node / "lib").mkdir()
    (directory / "weights").mkdir()
    (directory / "weights" / f"{hashlib.sha256(weights.encode()).hexdigest()}.bin").write_text(weights)
    (directory / "weights/shared.bin").write_text("in every release")
    (directory / "bundle.toml").write_text(f'files = "{weights}"\n')
    (directory / "manifest.toml").write_text("format = 1\n")
    (node / "name").write_text(facts.node + "\n")
    (node / "link.key").write_text("public\nsecret\n")
    (node / "link.key").chmod(0o600)
    for name, content in render_node(load_target(target), facts).items():
        (node / name).write_bytes(content)
        (node / name).chmod(mode_of(name))
    (node / "requirements.txt").write_text("ruvrun\n")
    _wheels(node / "wheels")
    return directory


def judged(bundle: Path, code: int, text: str) -> Path:
    """The bundle, which its doctor will not be content with."""
    (bundle / "node/verdict").write_text(f"{code} {text}")
    return bundle


def run(script: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A script to its end."""
    return subprocess.run([script, *map(str, words)], capture_output=True, text=True, check=False)


def other_build(letter: str) -> NodeFacts:
    """The same node in a build of another id."""
    return replace(FACTS, id=letter * 64)


def install(bundle: Path, here: Installed, *words: object) -> subprocess.CompletedProcess[str]:
    """install.sh of a bundle, for this Python and below that root."""
    name = ("--name", here.name) if here.name != "tiny" else ()
    return run(bundle / "node/install.sh", *words, *name, "--root", here.root, "--python", sys.executable)


def installed(bundle: Path, here: Installed, *words: object) -> str:
    """Install it, which must work; returns the running release."""
    done = install(bundle, here, *words)
    assert done.returncode == 0, done.stderr
    running = here.named("current")
    assert running is not None
    return running


def status(bundle: Path, here: Installed) -> str:
    """What install.sh says of the releases there."""
    return install(bundle, here, "--status").stdout


def everything(root: Path) -> set[str]:
    """All files and folders below a root."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def _wheels(folder: Path) -> None:
    folder.mkdir()
    _wheel(folder / "ruvrun-0.1.0-py3-none-any.whl", {"ruvrun/__init__.py": "", "ruvrun/__main__.py": _JUDGE})
    _wheel(folder / "pip-0-py3-none-any.whl", {"pip/__main__.py": _UNPACK})
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.glob("*.whl"))]
    (folder / "SHA256SUMS").write_text("".join(lines))


def _wheel(path: Path, files: Mapping[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name), text)
