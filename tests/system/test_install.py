"""install.sh on minimal Debians without a network: real wheels, a real stage, and every way in which it goes wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ruvcompile.render import render_node
from ruvcompile.targets import load_target, target_names
from ruvrun.bundle import BUNDLE, file_sha256, load_spec
from ruvrun.manifest import dump_manifest, dump_toml, identify, load_manifest
from ruvrun.npz import read_npz, write_npz
from tests.installs import FACTS
from tests.models import write_tiny_gguf
from tests.system.debian import Machine, bundles, program, suite

pytestmark = pytest.mark.system

HOME = "/opt/ruvrun/tiny"
INSTALL = "/root/bundle/node/install.sh --name tiny"
SERVE = f"""
install -d -m 755 /run/credentials
install -o ruvrun -m 400 {HOME}/current/node/link.key /etc/ruvrun/tiny/api-keys /run/credentials/
export CREDENTIALS_DIRECTORY=/run/credentials
setpriv --reuid=ruvrun --regid=ruvrun --clear-groups {HOME}/ruvrun serve {HOME}/current/manifest.toml --node a &
for _ in $(seq 100); do
    {HOME}/ruvrun status http://127.0.0.1:8000 --check && break
    sleep 0.5
done
"""


def build(directory: Path, seed: int) -> Path:
    """The bundle of a tiny model on one PC, which has no network."""
    model = write_tiny_gguf(directory / "tiny.gguf", seed=seed)
    options = {"target": "x86-64", "nodes": "a", "backend": "onnxruntime", "context": 64, "streams": 2}
    return bundles(model, directory / "dist", wheels="3.11,3.13", **options) / "a"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("one"), 0)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next build."""
    return build(tmp_path_factory.mktemp("two"), 1)


@pytest.fixture(scope="module")
def bare(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine that has the bundle, and nothing else."""
    machine = Machine([suite("bookworm", "amd64")], tmp_path_factory.mktemp("bare"))
    machine.put(bundle, "/root/bundle")
    return machine


@pytest.fixture(scope="module")
def installed(bare: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine on which it is installed; tests take forks of it."""
    machine = bare.fork(tmp_path_factory.mktemp("installed"))
    done = machine.run(INSTALL)
    assert done.returncode == 0, done.stdout + done.stderr
    return machine


@pytest.fixture
def here(installed: Machine, tmp_path: Path) -> Machine:
    """A fork that a test may do anything to."""
    return installed.fork(tmp_path / "machine")


def status(machine: Machine, what: str = INSTALL) -> dict[str, str]:
    told = machine.run(f"{what} --status").stdout
    return dict(word.split("=") for word in told.split())


def test_the_self_check_and_a_service_without_privileges(here: Machine) -> None:
    told = here.run(
        f"{HOME}/ruvrun doctor {HOME}/current --self-check; id ruvrun; "
        f"stat -c %U:%a {HOME}/current/node/link.key /var/cache/ruvrun/tiny"
    )
    assert "self-check a: it computes what the build machine computed" in told.stdout
    assert "root:600\nruvrun:700\n" in told.stdout
    assert "uid=" in told.stdout
    served = here.run(SERVE + "kill $!; wait; ")
    assert "ready: 1 of 1 stages at http://127.0.0.1:8000" in served.stdout, served.stdout + served.stderr
    gone = here.run(f"{HOME}/ruvrun status http://127.0.0.1:8000 --check")
    assert (gone.returncode, gone.stdout.count("\n")) == (6, 1)


def test_keys_of_clients_are_taken_from_the_init_system(here: Machine) -> None:
    asked = here.run(
        "echo 'alice secret-of-alice' >/etc/ruvrun/tiny/api-keys\n" + SERVE
        + f"{HOME}/ruvrun run --url http://127.0.0.1:8000 --prompt the --max-tokens 2; echo without: $?\n"
        f"{HOME}/ruvrun run --url http://127.0.0.1:8000 --prompt the --max-tokens 2 --api-key secret-of-alice\n"
        "echo with: $?; kill $!; wait"
    )  # fmt: skip
    assert "with: 0" in asked.stdout, asked.stdout + asked.stderr
    assert "without: 3" in asked.stdout
    assert "/run/credentials/api-keys (default)" in asked.stderr


def test_an_upgrade_and_the_way_back(here: Machine, second: Path) -> None:
    one = status(here)["running"]
    here.put(second, "/root/second")
    upgraded = here.run("/root/second/node/install.sh --name tiny")
    assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
    two = status(here)["running"]
    assert two != one
    assert status(here)["previous"] == one
    assert here.run("/root/second/node/install.sh --name tiny --rollback").returncode == 0
    assert status(here) == {"running": one, "staged": "none", "previous": two}


def wrong(bundle: Path, directory: Path) -> Path:
    """A bundle that is what it says it is, but whose stage computes something else than its golden check."""
    made = Path(shutil.copytree(bundle, directory))
    spec = load_spec(made)
    names = {f"{kind}.{port.name}" for kind in ("in", "out") for port in (*spec.inputs, *spec.outputs)}
    stored = read_npz(made / "golden.npz", names)
    changed = {name: value + 1 if name.startswith("out.") else value for name, value in stored.items()}
    (made / "golden.npz").unlink()
    write_npz(made / "golden.npz", {name: np.asarray(value) for name, value in changed.items()})
    files = [
        msgspec.structs.replace(file, sha256=file_sha256(made / file.path), bytes=(made / file.path).stat().st_size)
        for file in spec.files
    ]
    (made / BUNDLE).unlink()
    (made / BUNDLE).write_bytes(dump_toml(msgspec.structs.replace(spec, files=files)))
    manifest = load_manifest(made / "manifest.toml")
    stages = [msgspec.structs.replace(manifest.stage[0], sha256=file_sha256(made / BUNDLE))]
    other = identify(manifest.program, stages, manifest.pipeline)
    (made / "manifest.toml").write_bytes(dump_manifest(msgspec.structs.replace(manifest, stage=stages, id=other)))
    return made


def test_a_release_that_computes_something_else_never_runs(here: Machine, bundle: Path, tmp_path: Path) -> None:
    before = status(here)
    here.put(wrong(bundle, tmp_path / "wrong"), "/root/wrong")
    listed = here.list()
    done = here.run("/root/wrong/node/install.sh --name tiny")
    assert done.returncode == 5
    assert "does not compute what the build machine computed" in done.stdout
    assert status(here) == before
    assert here.list() == listed


def test_a_byte_that_was_flipped_on_the_way(here: Machine, second: Path) -> None:
    here.put(second, "/root/second")
    weights = sorted((here.changed / "root/second/weights").iterdir())[0]
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    done = here.run("/root/second/node/install.sh --name tiny")
    assert (done.returncode, weights.name in done.stdout) == (5, True), done.stdout + done.stderr


def test_a_second_model_and_what_two_may_not_share(here: Machine, second: Path) -> None:
    here.put(second, "/root/second")
    other = here.run("/root/second/node/install.sh --name other --port 8001")
    assert other.returncode == 0, other.stdout + other.stderr
    assert status(here, "/opt/ruvrun/other/current/node/install.sh")["running"] != "none"
    assert here.run(f"{HOME}/ruvrun doctor {HOME}/current -q").returncode == 0
    units = here.run("ls /etc/systemd/system/*.service").stdout.split()
    assert [Path(unit).name for unit in units] == ["ruvrun@other.service", "ruvrun@tiny.service"]


def test_what_does_not_fit_together_is_refused(here: Machine, second: Path, tmp_path: Path) -> None:
    meminfo = Path("/proc/meminfo").read_text().split("\n", 1)[1]
    (tmp_path / "meminfo").write_text(f"MemTotal: {(1 << 20) + 160 * 1024} kB\n{meminfo}")
    small = here.fork(tmp_path / "small", shown={"/proc/meminfo": tmp_path / "meminfo"})
    small.put(second, "/root/second")
    done = small.run("/root/second/node/install.sh --name other --port 8001")
    assert (done.returncode, "tiny needs" in done.stdout) == (4, True), done.stdout + done.stderr
    assert small.run("ls /opt/ruvrun").stdout.split() == ["tiny"]


def test_a_port_that_another_service_holds(bare: Machine, tmp_path: Path) -> None:
    machine = bare.fork(tmp_path / "machine")
    done = machine.run(
        f"python3 -m http.server 8000 >/dev/null 2>&1 & sleep 2; {INSTALL}; code=$?; kill $!; exit $code"
    )
    assert done.returncode == 7
    assert "port of HTTP: 8000 is taken by process" in done.stdout
    assert "http.server" in done.stdout
    assert not (machine.changed / "opt/ruvrun").exists()


def test_too_little_disk(bare: Machine, tmp_path: Path) -> None:
    small = 'mkdir -p "$ROOT/opt"; mount -t tmpfs -o size=40m tmpfs "$ROOT/opt"'
    machine = bare.fork(tmp_path / "machine", before=small)
    done = machine.run(f"{INSTALL}; code=$?; ls -A /opt; exit $code")
    assert (done.returncode, "error[disk-short]" in done.stderr, done.stdout) == (7, True, ""), done.stderr


def test_after_an_upgrade_of_the_system(here: Machine, tmp_path: Path) -> None:
    """Its disk goes on under a Debian with another Python; an edited setting stays."""
    edited = here.run(
        "echo 'RUVRUN_ARGS=--port 8000 --queue 3' >/etc/ruvrun/tiny/ruvrun.env && "
        "tar -cf /root/kept.tar opt/ruvrun etc/ruvrun"
    )
    assert edited.returncode == 0, edited.stderr
    newer = Machine([suite("trixie", "amd64")], tmp_path / "newer")
    shutil.copy(here.changed / "root/kept.tar", newer.changed / "kept.tar")
    told = newer.run(f"tar -xf /kept.tar -C / && {HOME}/ruvrun --version")
    assert told.returncode == 7
    assert told.stderr.startswith("error[python-changed]: this release has packages for cpython-311")
    mended = newer.run(
        f"{HOME}/current/node/install.sh --repair && {HOME}/ruvrun doctor -q {HOME}/current --self-check"
    )
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert (newer.changed / "etc/ruvrun/tiny/ruvrun.env").read_text() == "RUVRUN_ARGS=--port 8000 --queue 3\n"


def test_uninstall_leaves_nothing(bare: Machine, here: Machine, tmp_path: Path) -> None:
    done = here.run("/opt/ruvrun/tiny/current/node/uninstall.sh")
    assert done.returncode == 0, done.stderr
    assert here.list() == bare.fork(tmp_path / "as-before").list()
    assert here.run("id ruvrun").returncode != 0


def test_the_unit_is_one_that_systemd_takes_and_lets_do_little(installed: Machine, tmp_path: Path) -> None:
    unit = tmp_path / "ruvrun@tiny.service"
    text = (installed.changed / "etc/systemd/system/ruvrun@tiny.service").read_text()
    unit.write_text(text.replace("ExecStart=/opt/ruvrun/%i/ruvrun", "ExecStart=/bin/true"))
    verified = subprocess.run(
        [program("systemd-analyze", "systemd"), "verify", unit], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout[-500:]


@pytest.mark.parametrize("target", sorted(target_names()))
def test_the_unit_of_every_target_is_taken_and_may_do_little(target: str, tmp_path: Path) -> None:
    unit = tmp_path / "ruvrun@tiny.service"
    text = render_node(load_target(target), FACTS)["ruvrun.service"].decode()
    unit.write_text(text.replace("ExecStart=/opt/ruvrun/%i/ruvrun", "ExecStart=/bin/true"))
    for words in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        done = subprocess.run(
            [program("systemd-analyze", "systemd"), *words, unit], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-500:]


def test_the_scripts_are_clean(installed: Machine) -> None:
    node = next((installed.changed / "opt/ruvrun/tiny/releases").iterdir()) / "node"
    checked = subprocess.run(
        [
            *(program("shellcheck", "shellcheck"), "-x", "-a", "-P", "SCRIPTDIR"),
            *(node / name for name in ("install.sh", "uninstall.sh", "ruvrun")),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
