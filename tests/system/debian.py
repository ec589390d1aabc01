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
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "debian"
QEMU = Path("/usr/bin/qemu-aarch64-static")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
_MAGIC = r":ruvrun-test:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:" + (
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:" + f"{QEMU}:OCF"
)
WAIT = 600
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


def suite(name: str, architecture: str) -> Path:
    """The files of a minimal Debian, made once."""
    require(os.geteuid() == 0, "not root")
    directory = CACHE / f"{name}-{architecture}"
    done = subprocess.run(
        [HERE / "debian.sh", name, architecture, directory], capture_output=True, text=True, check=False
    )
    require(done.returncode == 0, f"debian.sh could not make {name} for {architecture}: {done.stderr[-500:]}")
    return directory


@dataclass
class Machine:
    """A Debian of its own in ``directory``. ``shown`` are files of ours that it sees in place of its own."""

    lower: Path
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

    @property
    def files(self) -> set[str]:
        """What there is that the suite does not have, but for the backups that useradd and userdel make."""
        return {
            str(path.relative_to(self.changed))
            for path in self.changed.rglob("*")
            if not (path.is_dir() and (self.lower / path.relative_to(self.changed)).is_dir())
            and path.name not in ("passwd-", "group-", "shadow-", "gshadow-", "subuid", "subgid", ".pwd.lock")
        }

    def put(self, source: Path, where: str) -> str:
        """Copy a folder onto it."""
        shutil.copytree(source, self.changed / where.lstrip("/"), symlinks=True)
        return where

    def command(self, script: str) -> tuple[list[str], dict[str, str]]:
        """The command line and environment by which a script of its shell runs on it."""
        binds = "".join(f'mount --bind "{ours}" "$ROOT{there}"\n' for there, ours in self.shown.items())
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root", **self.environment}
        settings = [f"{name}={value}" for name, value in clean.items()]
        inside = ["chroot", str(self.directory / "root"), "/usr/bin/env", "-i", *settings, "/bin/bash", "-c", script]
        # What env and bash are emulated with has to be known before they are started.
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts"]
        words += [] if self.network else ["--net"]
        words += ["bash", "-euc", f'{_MOUNT}{binds}{self.before}\nexec "$@"', "machine", *inside]
        into = ["ip", "netns", "exec", self.network] if self.network else []
        paths = {"LOWER": self.lower, "UPPER": self.changed, "WORK": self.directory / "work"}
        paths["ROOT"] = self.directory / "root"
        return [*into, *words], {**os.environ, **self.environment, **{name: str(at) for name, at in paths.items()}}

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """A script of its shell, to its end."""
        words, environment = self.command(script)
        return subprocess.run(words, capture_output=True, text=True, timeout=WAIT, env=environment, check=False)

    def start(self, script: str, log: Path) -> subprocess.Popen[bytes]:
        """A script that goes on; what it says is in ``log``."""
        words, environment = self.command(script)
        with log.open("wb") as said:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)


@contextmanager
def emulated() -> Iterator[None]:
    """While this lasts, programs for 64-bit Arm run."""
    if not QEMU.exists():
        install = "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y qemu-user-static"
        done = subprocess.run(["bash", "-c", install], capture_output=True, text=True, check=False)
        require(done.returncode == 0 and QEMU.exists(), "apt could not install qemu-user-static")
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
