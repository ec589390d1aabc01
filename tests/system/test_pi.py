"""The Pi that is not there: bundles for Raspberry Pi 5s install themselves on emulated ones, and answer together.

Two Debians of unlike releases on an emulated Cortex-A76, each with the network of a machine of its own, get the bundles
of one build of the real model with their own wheels, and no other packages: what they lack they cannot fetch.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ruvrun.record import check_answer, read_record
from tests.commands.served import complete
from tests.models import smollm2_path
from tests.system.debian import CORTEX_A76, Machine, bundles, emulated, network, suite

pytestmark = [pytest.mark.system, pytest.mark.model]

SUITES = {"pi5-0": "bookworm", "pi5-1": "trixie"}
NETWORKS = {"pi5-0": "ruvpi0", "pi5-1": "ruvpi1"}
SERVE = """
install -d -m 755 /run/credentials && install -o ruvrun -m 400 /opt/ruvrun/pi/current/node/link.key /run/credentials/
export CREDENTIALS_DIRECTORY=/run/credentials
exec setpriv --reuid=ruvrun --regid=ruvrun --clear-groups /opt/ruvrun/pi/ruvrun serve \\
    /opt/ruvrun/pi/current/manifest.toml --node {node}
"""
WAIT = 300.0


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages for two Pis, with the wheels of both their Pythons."""
    return bundles(
        smollm2_path(), tmp_path_factory.mktemp("pis") / "dist", target="pi5", nodes="2", stages=2, quant="int4",
        context=256, streams=2, wheels="3.11,3.13",
    ).parent  # fmt: skip


@pytest.fixture(scope="module")
def pis(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """Both, with the bundle that is theirs in /root and names for each other."""
    directory = tmp_path_factory.mktemp("machines")
    (directory / "cpuinfo").write_text(CORTEX_A76)
    hosts = [f"{node}.local" for node in SUITES]
    with emulated(), network(list(NETWORKS.values()), hosts) as addresses:
        made = {}
        for node, release in SUITES.items():
            # Compiling every module of every package takes minutes when it is emulated, and proves nothing.
            emulation = {"QEMU_CPU": "cortex-a76", "PIP_NO_COMPILE": "1"}
            shown = {"/proc/cpuinfo": directory / "cpuinfo"}
            machine = made[node] = Machine(
                [suite(release, "arm64")], directory / node, NETWORKS[node], emulation, shown
            )
            machine.put(build / "bundles" / node, "/root/bundle")
            lines = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in addresses.items())]
            (machine.changed / "etc").mkdir(exist_ok=True)
            (machine.changed / "etc/hosts").write_text("\n".join(lines) + "\n")
        yield made


@pytest.fixture(scope="module")
def installed(pis: dict[str, Machine]) -> dict[str, Machine]:
    """Both, after their own install.sh, each at the same time as the other."""
    with ThreadPoolExecutor(2) as both:
        answers = both.map(lambda pi: pi.run("/root/bundle/node/install.sh --name pi"), pis.values())
        done = dict(zip(pis, answers, strict=True))
    for node, each in done.items():
        assert each.returncode == 0, f"{node}: {each.stdout}{each.stderr}"
        assert "staged: ruvrun@pi" in each.stdout
    return pis


def test_a_pi_is_what_its_bundle_was_built_for(pis: dict[str, Machine]) -> None:
    told = pis["pi5-0"].run("uname -m; python3 -V; python3 -m ensurepip; python3 -m pip")
    assert told.stdout.split("\n")[0] == "aarch64"
    assert "No module named ensurepip" in told.stderr or "ensurepip is disabled" in told.stderr
    assert "No module named pip" in told.stderr


def test_two_pis_answer_as_the_record_of_the_build(build: Path, installed: dict[str, Machine], tmp_path: Path) -> None:
    logs = {node: tmp_path / f"{node}.log" for node in installed}
    running = [pi.start(SERVE.format(node=node), logs[node]) for node, pi in installed.items()]
    try:
        until = time.monotonic() + WAIT
        while "ready: http" not in logs["pi5-0"].read_text():
            assert time.monotonic() < until, {node: log.read_text() for node, log in logs.items()}
            assert all(process.poll() is None for process in running), {n: log.read_text() for n, log in logs.items()}
            time.sleep(0.5)
        ask = "import sys; from tests.system.test_pi import ask; ask(*sys.argv[1:])"
        asked = subprocess.run(
            ["ip", "netns", "exec", NETWORKS["pi5-0"], sys.executable, "-c", ask, str(build / "manifest.toml")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert asked.returncode == 0, asked.stdout + asked.stderr
        told = installed["pi5-1"].run("/opt/ruvrun/pi/ruvrun doctor /opt/ruvrun/pi/current --peers -q; echo $?")
        assert "peer" not in told.stdout, told.stdout
    finally:
        for process in running:
            Machine.end(process)


def ask(manifest: str) -> None:
    """Hold the head on this machine against the record of a build, and ask it what everybody knows."""
    url = "http://127.0.0.1:8000"
    check_answer(url, read_record(Path(manifest)), None)
    status, answer = complete(url, "The capital of France is", max_tokens=1)
    assert (status, answer["choices"][0]["text"]) == (200, " Paris")


def test_a_pi_that_became_another_debian_is_mended_without_a_network(
    installed: dict[str, Machine], tmp_path: Path
) -> None:
    """The disk of the first goes on under a newer system, as after an upgrade."""
    first = installed["pi5-0"]
    newer = Machine([suite("trixie", "arm64")], tmp_path / "newer", "", first.environment, first.shown)
    for folder in ("opt", "etc/ruvrun"):
        subprocess.run(["cp", "-a", "--parents", folder, newer.changed], cwd=first.changed, check=True)
    told = newer.run("/opt/ruvrun/pi/ruvrun --version")
    assert told.returncode == 7
    assert told.stderr.startswith("error[python-changed]: this release has packages for cpython-311")
    mended = newer.run("/opt/ruvrun/pi/current/node/install.sh --repair && /opt/ruvrun/pi/ruvrun --version")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "repaired: ruvrun@pi, for Python 3.13" in mended.stdout
