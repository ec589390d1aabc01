"""Images and services of a build, really made and run: with podman, which takes what Docker takes and needs no daemon.

The images that the Dockerfiles begin with are made of a Debian that is here, so nothing is fetched; of podman's own, no
test uses more than what Docker's interface has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ruvrun.manifest import load_manifest
from tests.models import write_tiny_gguf
from tests.system.debian import bundles, program, require, suite

pytestmark = pytest.mark.system

WAIT = 120.0
USER = "1000:1000"
FLEET = "format = 1\n" + "".join(
    f'[[node]]\nname = "{name}"\ntarget = "x86-64"\naddress = "127.0.0.1"\nport = {port}\n'
    for name, port in (("one", 7171), ("two", 7172))
)
STORAGE = '[storage]\ndriver = "overlay"\nrunroot = "{0}/run"\ngraphroot = "{0}/graph"\n'
CONTAINERS = (
    '[containers]\ncgroups = "disabled"\nnetns = "host"\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "crun"\n'
)


@dataclass
class Machine:
    """A network of its own, and an engine of containers there."""

    network: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
            "CONTAINER_HOST": self.socket,
            "DOCKER_HOST": self.socket,
            "COMPOSE_DOCKER_CLI_BUILD": "0",
            "BUILDAH_ISOLATION": "chroot",
            "RUVRUN_USER": USER,
            "RUVRUN_API_KEY": "secret",
        }

    @property
    def socket(self) -> str:
        return f"unix://{self.folder / 'socket'}"

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        line = ["ip", "netns", "exec", self.network, *map(str, words)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                line, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def run(self, *words: object, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        line = ["ip", "netns", "exec", self.network, *map(str, words)]
        done = subprocess.run(
            line, cwd=cwd, env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    def build(self, recipe: str, image: str, context: str, folder: Path) -> None:
        """As ``docker build``. Its commands run in a chroot: a container of theirs would want limits raised."""
        words = ("build", "--isolation", "chroot", "-f", recipe, "-t", image, context)
        self.run("podman", "--remote", *words, cwd=folder)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    require(os.geteuid() == 0, "not root")
    program("podman", "podman crun")
    program("docker-compose", "docker-compose")
    folder = tmp_path_factory.mktemp("engine")
    (folder / "storage.conf").write_text(STORAGE.format(folder))
    (folder / "containers.conf").write_text(CONTAINERS)
    (folder / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
    made = Machine(f"ruvc{os.getpid()}", folder)
    subprocess.run(["ip", "netns", "add", made.network], check=True)
    service = None
    try:
        subprocess.run(["ip", "-n", made.network, "link", "set", "lo", "up"], check=True)
        # The runtime takes one kind of control groups, and this machine may have two.
        alone = 'mount -t cgroup2 none /sys/fs/cgroup; unset CONTAINER_HOST; exec "$@"'
        service = made.start("bash", "-c", alone, "alone", "podman", "system", "service", "--time=0", made.socket)
        until = time.monotonic() + WAIT
        while not (folder / "socket").exists():
            assert service.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.1)
        yield made
    finally:
        if service is not None:
            made.run("podman", "--remote", "rm", "--all", "--force", "--time", "5", check=False)
            service.terminate()
            service.wait(WAIT)
        subprocess.run(["ip", "netns", "delete", made.network], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build for two nodes of one machine, as if they were two; its wheels are those of the image, too."""
    folder = tmp_path_factory.mktemp("build")
    (folder / "fleet.toml").write_text(FLEET)
    model = write_tiny_gguf(folder / "tiny.gguf")
    options = {"fleet": str(folder / "fleet.toml"), "stages": 2, "backend": "onnxruntime", "wheels": "3.13"}
    made = bundles(model, folder / "dist", **options)
    for wheel in (made / "one/node/wheels").glob("*.whl"):
        shutil.copy(wheel, folder / "dist/deliver/docker/wheels")
    (folder / "dist/deliver/docker/api-keys").write_text("me secret\n")
    subprocess.run(["chown", "-R", USER, folder / "dist"], check=True)
    for place in (folder, *folder.parents):
        if place.owner() == "root" and place.is_relative_to("/tmp"):
            place.chmod(place.stat().st_mode | 0o011)
    return folder / "dist"


@pytest.fixture(scope="module")
def images(machine: Machine, dist: Path) -> None:
    """What the Dockerfiles begin with: a Python 3.13 with pip, and a shell."""
    below = suite("trixie", "amd64")
    (pip,) = (dist / "bundles/one/node/wheels").glob("pip-*.whl")
    folder = machine.folder / "base"
    for place in ("usr/local/bin", "usr/local/share"):
        (folder / place).mkdir(parents=True)
    shutil.copy(pip, folder / "usr/local/share")
    script = folder / "usr/local/bin/pip"
    script.write_text(f'#!/bin/sh\nexec python3 /usr/local/share/{pip.name}/pip "$@"\n')
    script.chmod(0o755)
    tar = machine.folder / "base.tar"
    ours = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    words = ["--exclude=./usr/lib/python3*/EXTERNALLY-MANAGED", "-C", below, ".", "-C", folder, *ours]
    subprocess.run(["tar", "-cf", tar, *words], check=True)
    for name in ("python:3.13-slim", "busybox:stable"):
        change = ("--change", "ENV PIP_NO_INDEX=1", "--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin")
        machine.run("podman", "--remote", "import", *change, tar, f"docker.io/library/{name}")
    tar.unlink()


def test_the_services_of_the_compose_file_answer_as_the_build_recorded(
    machine: Machine, dist: Path, images: None
) -> None:
    docker = dist / "deliver/docker"
    for image, recipe in {(each["image"], each["build"]["dockerfile"]) for each in _services(docker).values()}:
        machine.build(recipe, image, ".", docker)
    machine.run("docker-compose", "up", "-d", "--no-build", cwd=docker)
    ruvrun = [sys.executable, "-m", "ruvrun"]
    until = time.monotonic() + WAIT
    while machine.run(*ruvrun, "status", "http://127.0.0.1:8000", "--check", check=False).returncode:
        assert time.monotonic() < until, machine.run("docker-compose", "logs", cwd=docker).stdout
        time.sleep(0.5)
    told = machine.run(*ruvrun, "run", dist / "manifest.toml", "--url", "http://127.0.0.1:8000", "--golden", "--json")
    assert json.loads(told.stdout)["compared"]
    machine.run("docker-compose", "stop", cwd=docker)


@pytest.mark.parametrize(("name", "context"), [("bundle-one", "bundles/one"), ("bundles", "bundles")])
def test_a_bundle_as_an_image_has_no_key(machine: Machine, dist: Path, images: None, name: str, context: str) -> None:
    """Nor do the layers below it, which whoever has the image has too."""
    image = f"ruvrun-{name}:{load_manifest(dist / 'manifest.toml').id[:12]}"
    machine.build("Dockerfile.bundle", image, f"../../{context}", dist / "deliver/docker")
    saved = machine.folder / "saved.tar"
    machine.run("podman", "--remote", "save", "--format", "docker-archive", "--output", saved, image)
    found: list[str] = []
    with tarfile.open(saved) as whole:
        for member in whole:
            if member.name.endswith(".tar") and member.isfile():
                with tarfile.open(fileobj=whole.extractfile(member)) as layer:
                    found += layer.getnames()
    saved.unlink()
    ours = [path for path in found if path.startswith("bundle/")]
    assert [path for path in ours if path.endswith("/bundle.toml")]
    assert not [path for path in ours if path.endswith(("link.key", ".whl"))]


def test_what_a_service_compiles_is_kept_by_whoever_runs_it(machine: Machine, dist: Path, images: None) -> None:
    """The volume is the user's to write, though nobody said whose it is; and it is there for the next container.

    They are started, and then asked how they ended: one that is attached to may have ended before, and is waited for
    for ever.
    """
    docker = dist / "deliver/docker"
    (service,) = [each for name, each in _services(docker).items() if name == "two"]
    machine.build(service["build"]["dockerfile"], service["image"], ".", docker)
    for script in ('touch "$RUVRUN_CACHE/made"', 'test -f "$RUVRUN_CACHE/made"'):
        line = ("run", "--detach", "--no-deps", "--entrypoint", "sh", "two", "-c", script)
        container = machine.run("docker-compose", *line, cwd=docker).stdout.split()[-1]
        assert machine.run("podman", "--remote", "wait", container).stdout.strip() == "0", script
        machine.run("podman", "--remote", "rm", container)


def _services(docker: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((docker / "compose.yaml").read_text())["services"])
