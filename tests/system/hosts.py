"""Three machines and a desk, made of namespaces: each has its own network, processes and files, and a real sshd.

A machine's files are this system's, under a layer of its own that is gone with it; so Python and the packages of the
tests are there, and what is installed on one machine is on no other. The desk is where deliveries start: it has a wire
to each.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("pi-0", "pi-1", "pi-2")
TOOLS = ("ip", "unshare", "/usr/sbin/sshd", "rsync", "sudo")
WAIT = 30.0
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SERVICES = HERE / "services.py"
PYTHON = "/usr/local/bin/python-here"
STRANGER = "stranger"
"""A name by which ssh gets to the first machine, and expects the key of the last."""

# $1 folder, $2 name, $3 service manager, $4 interpreter, $5 folders with packages
_BIRTH = r"""
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs -o size=1500m machine "$1/disk"
mkdir "$1"/disk/{own,work,root}
root=$1/disk/root
mount -t overlay -o "lowerdir=/,upperdir=$1/disk/own,workdir=$1/disk/work" machine "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
for place in run opt; do mount -t tmpfs -o size=600m machine "$root/$place"; done
hostname "$2"
mkdir -p "$root"/run/{sshd,systemd/system} "$root/root/.ssh"
rm -rf "$root/etc/ruvrun" "$root"/etc/systemd/system/ruvrun*
install -m 600 "$1/host_key" "$root/etc/ssh/machine_key"
install -m 755 "$3" "$root/usr/local/bin/systemctl"
cat >"$root/usr/local/bin/python-here" <<SCRIPT
#!/bin/sh
# The interpreter of the tests; packages that pip would install are theirs.
case "\$*" in
    *' -m pip install '* | '-m pip install '*)
        while [ "\$1" != --target ]; do shift; done
        mkdir -p "\$2"
        for folder in $5; do ln -s "\$folder"/* "\$2"/ 2>/dev/null || true; done
        exit 0 ;;
    *doctor*--self-check*)
        [ ! -e /run/computes-wrong ] || { echo 'error[golden-mismatch]: it computes something else' >&2; exit 5; } ;;
esac
exec $4 "\$@"
SCRIPT
chmod 755 "$root/usr/local/bin/python-here"
chroot "$root" useradd --create-home pi
chroot "$root" usermod --password "*" pi
echo 'pi ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/pi"
chmod 440 "$root/etc/sudoers.d/pi"
for home in root home/pi; do
    mkdir -p "$root/$home/.ssh"
    install -m 600 "$1/../desk/key.pub" "$root/$home/.ssh/authorized_keys"
done
chroot "$root" chown -R pi: /home/pi
cat >"$root/etc/ssh/sshd_machine" <<CONFIG
HostKey /etc/ssh/machine_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
CONFIG
ip link set lo up
exec chroot "$root" /usr/sbin/sshd -D -e -f /etc/ssh/sshd_machine
"""

_MEND = """
rm -f /run/{computes-wrong,starts-nothing,starts-slowly,loses-its-line} /opt/filled
rm -f /usr/local/bin/{uname,rsync,mv,flock}
if [ -e /usr/local/bin/python-kept ]; then mv /usr/local/bin/python-{kept,here}; fi
if [ -e /run/taken ]; then kill $(cat /run/taken); rm /run/taken; fi
if [ -e /root/sudoers ]; then mv /root/sudoers /etc/sudoers.d/pi; fi
ip link set eth0 up
for home in /opt/ruvrun/*; do
    [ -d "$home" ] || continue
    rm -rf "$home"/{incoming,staged,previous}
    for release in "$home"/releases/*; do
        [ "$(readlink -f "$home/current")" = "$release" ] || rm -rf "$release"
    done
done
for unit in /etc/systemd/system/ruvrun@*.service; do
    [ ! -e "$unit" ] || systemctl is-active "${unit##*/}" || systemctl start "${unit##*/}" || true
done
"""
_FORGET = """
pkill -f -- '-[m] ruvrun' || true
rm -rf /opt/ruvrun /etc/ruvrun /etc/systemd/system/ruvrun@* /run/services
"""


def able() -> bool:
    """Whether machines can be made here."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in TOOLS)


@dataclass
class Machine:
    """One machine: its name, where it is, and the process that all of it hangs on."""

    name: str
    address: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def first(self) -> int:
        """Its sshd, as seen from outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid

    def run(self, script: str, *, check: bool = True) -> str:
        """What a shell on the machine prints, as root."""
        words = ["nsenter", "-t", str(self.first), "-m", "-n", "-p", "-u", "-r", "bash", "-c", f"cd /; {script}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert not check or done.returncode == 0, (self.name, script, done.stderr)
        return done.stdout


@dataclass
class Fleet:
    """The machines, and the desk."""

    machines: dict[str, Machine]
    desk: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ssh(self) -> str:
        """How the desk gets to a machine."""
        return f"ssh -F {self.folder / 'desk' / 'config'}"

    def start(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        """A command at the desk, as a person there starts it."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.desk, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **self.environment, "RUVRUN_SSH": self.ssh, **environment},
        )

    def run(self, *words: object, seconds: float = 180, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command at the desk, to its end."""
        process = self.start(*words, **environment)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def mend(self) -> None:
        """As if what runs on each machine had just been delivered, and nothing else had ever been tried there."""
        self._everywhere(_MEND)

    def reset(self) -> None:
        """As if nothing had ever been delivered."""
        self._everywhere(f"{_FORGET}\n{_MEND}")

    def _everywhere(self, script: str) -> None:
        for machine in self.machines.values():
            machine.run(script)


@contextmanager
def machines(folder: Path) -> Iterator[Fleet]:
    """Three machines and a desk, for as long as the block lasts."""
    mark = f"ruv{os.getpid()}"
    desk = f"{mark}-desk"
    spaces = [desk, *(f"{mark}-{name}" for name in NAMES)]
    fleet = Fleet({}, desk, folder)
    (folder / "desk").mkdir()
    _key(folder / "desk" / "key")
    try:
        for space in spaces:
            _ip("netns", "add", space)
        _ip("-n", desk, "link", "add", "wires", "type", "bridge")
        _ip("-n", desk, "address", "add", "10.87.0.1/24", "dev", "wires")
        _ip("-n", desk, "link", "set", "wires", "up")
        _ip("-n", desk, "link", "set", "lo", "up")
        for number, name in enumerate(NAMES):
            fleet.machines[name] = _machine(folder / name, name, f"10.87.0.{10 + number}", desk, f"{mark}-{name}")
        _write_config(fleet)
        _until_all_answer(fleet)
        yield fleet
    finally:
        for machine in fleet.machines.values():
            machine.process.kill()
            machine.process.wait(WAIT)
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def _machine(folder: Path, name: str, address: str, desk: str, space: str) -> Machine:
    (folder / "disk").mkdir(parents=True)
    _key(folder / "host_key")
    _ip("-n", desk, "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", space)
    _ip("-n", desk, "link", "set", f"to-{name}", "master", "wires", "up")
    _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", space, "link", "set", "eth0", "up")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    birth = [_BIRTH, "birth", folder, name, SERVICES, sys.executable, " ".join([*packages, str(ROOT / "runtime")])]
    words = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "bash", "-c", *map(str, birth)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", space, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    return Machine(name, address, folder, process)


def _write_config(fleet: Fleet) -> None:
    desk = fleet.folder / "desk"
    keys = {machine.address: (machine.folder / "host_key.pub").read_text() for machine in fleet.machines.values()}
    first, *_, last = keys
    known = keys | {STRANGER: keys[last]}
    (desk / "known").write_text("".join(f"{host} {key}" for host, key in known.items()))
    (desk / "config").write_text(
        f"IdentityFile {desk / 'key'}\nIdentitiesOnly yes\nUserKnownHostsFile {desk / 'known'}\n"
        f"GlobalKnownHostsFile /dev/null\nLogLevel ERROR\nHost {STRANGER}\nHostName {first}\nHostKeyAlias {STRANGER}\n"
    )


def _until_all_answer(fleet: Fleet) -> None:
    until = time.monotonic() + WAIT
    for machine in fleet.machines.values():
        while fleet.run(*fleet.ssh.split(), f"root@{machine.address}", "true").returncode:
            told = (machine.folder / "log").read_text()
            assert machine.process.poll() is None and time.monotonic() < until, told
            time.sleep(0.1)


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
