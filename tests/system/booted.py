"""A whole computer, emulated: a Debian's own kernel and systemd, on a disk of its own, without a network.

What namespaces cannot show is real here: an init system that starts, watches and ends services, and a reboot. Only time
is not: without KVM every instruction is translated, and all takes ten to twenty times as long.

The disk is made of a ``Machine``'s files, so that nothing has to be mounted here. Commands go to QEMU's guest agent, a
package of Debian, over a virtual serial line that is a pair of sockets; what the kernel and systemd say is in a file.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tests.system.debian import SHELL, Machine, program

PACKAGES = {
    "amd64": ("systemd-sysv", "linux-image-cloud-amd64", "qemu-guest-agent", "procps"),
    "arm64": ("systemd-sysv", "linux-image-cloud-arm64", "qemu-guest-agent", "procps"),
}
_EMULATOR = {
    "amd64": ("qemu-system-x86_64", "qemu-system-x86", "q35", "max", "ttyS0"),
    "arm64": ("qemu-system-aarch64", "qemu-system-arm", "virt", "cortex-a76", "ttyAMA0"),
}
_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root")
BOOT, OFF, WAIT = 600.0, 180.0, 900.0

# A machine that has an id is not set up anew when it starts. What is for people who log in is off: nobody does.
_DISK = """
set -e
version=$(ls /lib/modules)
depmod "$version"
printf '%s\\n' virtio_pci virtio_blk ext4 >>/etc/initramfs-tools/modules
sed -i 's/^MODULES=.*/MODULES=list/' /etc/initramfs-tools/initramfs.conf
mkinitramfs -o /run/made/initrd "$version"
cp "/boot/vmlinuz-$version" /run/made/kernel
echo {name} >/etc/hostname
printf '127.0.0.1 localhost\\n127.0.1.1 {name}.local {name}\\n' >/etc/hosts
python3 -c 'import uuid; print(uuid.uuid4().hex)' >/etc/machine-id
mkdir -p /var/log/journal /run/disk
ln -s /dev/null /etc/systemd/system/systemd-logind.service
ln -s /dev/null /etc/systemd/system/getty-static.service
mount --bind / /run/disk
mke2fs -q -t ext4 -d /run/disk /run/made/disk {size}
"""


@dataclass
class Computer:
    """One computer; its disk, kernel and console are files in ``folder``."""

    folder: Path
    architecture: str = "amd64"
    memory: int = 2048
    _process: subprocess.Popen[bytes] | None = None
    _line: socket.socket | None = None
    _said: IO[bytes] = field(init=False)

    def start(self) -> None:
        """Switch it on, and wait until it takes commands."""
        emulator, package, board, cpu, console = _EMULATOR[self.architecture]
        self._line, theirs = socket.socketpair()
        words: list[str | Path] = [
            *(program(emulator, package), "-machine", board, "-cpu", cpu, "-accel", "tcg,thread=multi"),
            *("-smp", "2", "-m", str(self.memory), "-nodefaults", "-display", "none", "-nic", "none", "-no-reboot"),
            *("-kernel", self.folder / "kernel", "-initrd", self.folder / "initrd"),
            *("-append", f"root=/dev/vda rw console={console} panic=-1"),
            *("-drive", f"if=virtio,format=raw,cache=unsafe,file={self.folder / 'disk'}"),
            *("-chardev", f"file,id=console,append=on,path={self.folder / 'console'}", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=agent,fd={theirs.fileno()}", "-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0", "-device", "virtio-rng-pci"),
        ]
        with theirs, (self.folder / "emulator").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()]
            )
        self._said = self._line.makefile("rb")
        self._say("guest-sync", {"id": 1}, BOOT)

    def run(self, script: str, seconds: float = WAIT) -> subprocess.CompletedProcess[str]:
        """A script of its shell, as root, to its end."""
        until = time.monotonic() + seconds
        number = self._begin(script)
        while not (told := self._say("guest-exec-status", {"pid": number}))["exited"]:
            assert time.monotonic() < until, f"not done in {seconds:.0f} s: {script}\n{self.console()}"
            time.sleep(0.2)
        out, err = (
            base64.b64decode(told.get(name, "")).decode("utf-8", "replace") for name in ("out-data", "err-data")
        )
        return subprocess.CompletedProcess(script, told.get("exitcode", -told.get("signal", 0)), out, err)

    def reboot(self) -> None:
        """As a person does it; the emulator ends where a computer begins anew."""
        assert self._process is not None
        self._begin("systemctl reboot")
        assert self._process.wait(OFF) == 0, self.console()
        self.end()
        self.start()

    def end(self) -> None:
        """Pull the plug."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._line is not None:
            self._said.close()
            self._line.close()

    def console(self) -> str:
        """The last of what its kernel, its init system and the emulator said."""
        files = [self.folder / "console", self.folder / "emulator"]
        return "".join(file.read_text("utf-8", "replace")[-3000:] for file in files if file.exists())

    def _begin(self, script: str) -> int:
        words = {"path": SHELL[0], "arg": [*SHELL[1:], script], "env": _ENVIRONMENT, "capture-output": True}
        return int(self._say("guest-exec", words)["pid"])

    def _say(self, command: str, arguments: Mapping[str, Any], seconds: float = WAIT) -> Any:
        assert self._line is not None
        self._line.settimeout(seconds)
        try:
            self._line.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            answer = json.loads(self._said.readline() or b"null")
        except OSError as error:
            raise AssertionError(f"{command}: {error}\n{self.console()}") from None
        assert answer and "return" in answer, f"{command}: {answer}\n{self.console()}"
        return answer["return"]


def computer(debian: Machine, folder: Path, name: str, *, architecture: str = "amd64", size: str = "3G") -> Computer:
    """A computer called ``name`` (and ``name.local``), whose disk holds the files of ``debian`` as they are now."""
    folder.mkdir()
    made = f'mkdir -p "$ROOT/run/made" && mount --bind "{folder}" "$ROOT/run/made"'
    done = replace(debian, before=made).run(_DISK.format(name=name, size=size))
    assert done.returncode == 0, done.stdout + done.stderr
    return Computer(folder, architecture)
