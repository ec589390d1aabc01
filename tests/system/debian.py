"""Machines to install on: minimal Debians, each run as if it were a machine of its own, with no network but its own.

A machine is an overlay over the files of a suite (``debian.sh``), so that a fresh one takes no time and what was
changed on it is what lies in its upper folder. A command runs in namespaces of its own: mounts, processes and, unless
it is given one, a network that has a loopback and nothing else. One of another architecture is emulated by QEMU, which
the kernel starts by itself (binfmt_misc) for as long as the tests run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ruvcompile.wheels.shelf import SHELF
from tests.compiler.builds import build

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "debian"
QEMU = Path("/usr/bin/qemu-aarch64-static")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
_MAGIC = r":ruvrun-test:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:" + (
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:" + f"{QEMU}:OCF"
)
SHELL = ("/bin/bash", "-c")
WAIT = 1800
CORTEX_A76 = "".join(
    f"processor\t: {core}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp "
    "asimdhp cpuid asimdrdm lrcpc dcpop asimddp\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x4\n"
    "CPU part\t: 0xd0b\nCPU revision\t: 1\n\n"
    for core in range(4)
)
_MOUNT = """
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t sysfs sysfs "$ROOT/sys" -o ro
mount -t tmpfs tmpfs "$ROOT/dev"
mkdir "$ROOT/dev/shm" && mount -t tmpfs tmpfs "$ROOT/dev/shm"
for device in null zero full random urandom tty; do
    touch "$ROOT/dev/$device" && mount --bind "/dev/$device" "$ROOT/dev/$device"
done
ln -s /proc/self/fd "$ROOT/dev/fd"
ip link set lo up
"""


def require(needed: bool, what: str) -> None:
    """Skip where ``what`` is missing; where changes are judged that is a failure."""
    if needed:
        return
    if "CI" in os.environ:
        pytest.fail(f"{what}, which these tests need", pytrace=False)
    pytest.skip(what)


def program(name: str, package: str) -> str:
    """A program of this machine, which apt installs where it is missing."""
    if shutil.which(name) is None:
        install = f"apt-get install -qq -y --no-install-recommends {package}"
        told = f"apt-get update -qq && DEBIAN_FRONTEND=noninteractive {install}"
        subprocess.run(["bash", "-c", told], capture_output=True, check=False)
    require(shutil.which(name) is not None, f"no {name}, and apt could not install {package}")
    return name


def suite(name: str, architecture: str, *packages: str) -> Path:
    """The files of a minimal Debian, with these packages too, made once."""
    require(os.geteuid() == 0, "not root")
    directory = CACHE / "-".join([name, architecture, *packages])
    words = [HERE / "debian.sh", name, architecture, directory, ",".join(packages)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"debian.sh could not make {name} for {architecture}: {done.stderr[-500:]}")
    return directory


def bundles(model: Path, output: Path, **options: Any) -> Path:
    """The bundles of a build whose costs are assumed; what it fetches is fetched once for all tests."""
    shelf = output.parent / SHELF
    shelf.parent.mkdir(parents=True, exist_ok=True)
    CACHE.with_name("wheels").mkdir(parents=True, exist_ok=True)
    if not shelf.is_symlink():
        shelf.symlink_to(CACHE.with_name("wheels"))
    build(model, output, **options)
    return output / "bundles"


@dataclass
class Machine:
    """A Debian of its own in ``directory``, over the files in ``below``, the first of which counts.

    ``shown`` are files of ours that it sees in place of its own; ``before`` are commands of ours, run once those of its
    own are there.
    """

    below: Sequence[Path]
    directory: Path
    network: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, Path] = field(default_factory=dict)
    before: str = ""

    def __post_init__(self) -> None:
        for name in ("upper", "work", "root"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)

    @property
    def changed(self) -> Path:
        """What is not as in the suite."""
        return self.directory / "upper"

    def list(self) -> set[str]:
        """Everything on it, but for the backups that useradd and userdel leave, and what Python keeps of itself."""
        apart = "".join(f" ! -path '{path}*'" for path in ("/dev", "/proc", "/sys", "/tmp/", "/usr/lib/python3"))
        found = self.run(f"find / -xdev{apart}")
        kept = ("passwd-", "group-", "shadow-", "gshadow-", "subuid-", "subgid-", ".pwd.lock")
        return {path for path in found.stdout.splitlines() if not path.endswith(kept)}

    def fork(self, directory: Path, **changed: Any) -> Machine:
        """One that is as this one is now."""
        return replace(self, below=[self.changed, *self.below], directory=directory, **changed)

    def put(self, source: Path, where: str) -> str:
        """Copy a folder onto it."""
        shutil.copytree(source, self.changed / where.lstrip("/"), symlinks=True)
        return where

    def command(self, *words: str) -> tuple[list[str], dict[str, str]]:
        """The command line and environment by which a program runs on it."""
        binds = "".join(f'mount --bind "{ours}" "$ROOT{there}"\n' for there, ours in self.shown.items())
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root", **self.environment}
        settings = [f"{name}={value}" for name, value in clean.items()]
        inside = ["chroot", str(self.directory / "root"), "/usr/bin/env", "-i", *settings, *words]
        # What env and bash are emulated with has to be known before they are started.
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--cgroup"]
        apart += [] if self.network else ["--net"]
        apart += ["bash", "-euc", f'{_MOUNT}{binds}{self.before}\nexec "$@"', "machine", *inside]
        into = ["ip", "netns", "exec", self.network] if self.network else []
        paths = {"LOWER": ":".join(map(str, self.below)), "UPPER": self.changed, "WORK": self.directory / "work"}
        paths["ROOT"] = self.directory / "root"
        return [*into, *apart], {**os.environ, **self.environment, **{name: str(at) for name, at in paths.items()}}

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """A script of its shell, to its end."""
        words, environment = self.command(*SHELL, script)
        return subprocess.run(words, capture_output=True, text=True, timeout=WAIT, env=environment, check=False)

    def start(self, script: str, log: Path) -> subprocess.Popen[bytes]:
        """A script that goes on; what it says is in ``log``."""
        words, environment = self.command(*SHELL, script)
        with log.open("wb") as said:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)

    @staticmethod
    def end(started: subprocess.Popen[bytes]) -> None:
        """End the first process of what was started, and with it all others there.

        What became another user would survive the end of ``unshare``.
        """
        if started.poll() is None:
            for first in psutil.Process(started.pid).children():
                first.kill()
            started.wait()


@contextmanager
def emulated() -> Iterator[None]:
    """While this lasts, programs for 64-bit Arm run."""
    program(str(QEMU), "qemu-user-static")
    if not (BINFMT / "register").exists():
        done = subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], capture_output=True, check=False)
        require(done.returncode == 0, "this kernel has no binfmt_misc")
    entry = BINFMT / "ruvrun-test"
    if not entry.exists():
        (BINFMT / "register").write_text(_MAGIC)
    try:
        yield
    finally:
        if entry.exists():
            entry.write_text("-1")


@contextmanager
def network(names: Sequence[str], hosts: Sequence[str]) -> Iterator[dict[str, str]]:
    """A switch with a machine's network at each port; gives the address of each host, by its name."""
    addresses = {host: f"10.83.0.{number}" for number, host in enumerate(hosts, 1)}
    switch = f"{names[0]}-sw"
    _ip("netns", "add", switch)
    try:
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for number, (name, host) in enumerate(zip(names, hosts, strict=True)):
            _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "switch", "up")
            _ip("-n", name, "addr", "add", f"{addresses[host]}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield addresses
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
