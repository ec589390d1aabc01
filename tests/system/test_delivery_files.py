"""What is rendered for a fleet, before the programs that it is for: shellcheck, Docker Compose, Kubernetes, HAProxy."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ruvcompile.render import mode_of, render_fleet, render_node
from ruvcompile.targets import target_names
from tests.nodes import fleet

TOOLS = ("shellcheck", "docker-compose", "haproxy", "openssl")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not all(shutil.which(tool) for tool in TOOLS) and "CI" not in os.environ,
        reason=f"it takes {', '.join(TOOLS)}; tests/system/delivery.sh installs them",
    ),
]
SEVERAL = [("pi5", "pi5"), ("x86-64", "x86-64"), tuple(sorted(target_names()))]


@pytest.fixture(params=SEVERAL, ids=["pi5", "x86-64", "all"])
def delivery(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a fleet of these targets, in a build as far as its files look at it."""
    nodes = fleet(*request.param)
    for path, data in render_fleet(nodes, kind="decoder", version="0.1.0", most=4, wheels=False).items():
        place = tmp_path / "dist/deliver" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(mode_of(path))
    for facts, target in nodes:
        node = tmp_path / "dist/bundles" / facts.node / "node"
        node.mkdir(parents=True)
        (node / "lib").mkdir()
        for path, data in render_node(target, facts).items():
            (node / path).write_bytes(data)
        (node / "link.key").write_text("a secret\n")
    return tmp_path / "dist/deliver"


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [str(word) for word in words]
    return subprocess.run(
        line, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_shellcheck_has_nothing_to_say(delivery: Path) -> None:
    scripts = [
        *delivery.rglob("*.sh"),
        *delivery.parent.glob("bundles/*/node/*.sh"),
        *delivery.glob("../bundles/*/node/ruvrun"),
    ]
    done = run("shellcheck", "-x", "-a", "-P", "SCRIPTDIR", *scripts, cwd=delivery)
    assert done.returncode == 0, done.stdout


def test_compose_takes_the_file(delivery: Path) -> None:
    (delivery / "docker/api-keys").write_text("me secret\n")
    done = run("docker-compose", "config", "--quiet", cwd=delivery / "docker")
    assert done.returncode == 0, done.stderr
    for service in yaml.safe_load((delivery / "docker/compose.yaml").read_text())["services"].values():
        assert (delivery / "docker" / service["build"]["dockerfile"]).is_file()


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def test_kubernetes_takes_the_manifests(delivery: Path) -> None:
    paths = sorted((delivery / "k8s").glob("*.yaml"))
    checked = [_pods_alone(path) if path.name.startswith("leader") else path for path in paths]
    validate = Path(sys.executable).with_name("kubernetes-validate")
    done = run(validate, "--strict", *checked, cwd=delivery)
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stdout + done.stderr
    for path in paths:
        known = {(each["kind"], each["metadata"]["name"]) for each in documents(path)}
        for each in documents(path):
            for service in [each["spec"]["serviceName"]] if each["kind"] == "StatefulSet" else []:
                assert ("Service", service) in known


def _pods_alone(path: Path) -> Path:
    """The file with the pods of its LeaderWorkerSet, of which the program has no schema, as what it has one of."""
    made = []
    for each in documents(path):
        if each["kind"] == "LeaderWorkerSet":
            group = each["spec"]["leaderWorkerTemplate"]
            for part in ("leaderTemplate", "workerTemplate"):
                name = f"{each['metadata']['name']}-{part.lower()}"
                pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": group[part]}
                made.append(pods)
            assert group["size"] == 2
        else:
            made.append(each)
    place = path.with_suffix(".pods")
    place.write_text(yaml.safe_dump_all(made))
    return place


def test_a_pod_finds_its_own_key_and_the_others(delivery: Path, tmp_path: Path) -> None:
    """The script of a pod of equals, for each place in its group, with folders of ours in place of its volumes."""
    path = delivery / "k8s/leaderworkerset.yaml"
    if not path.is_file():
        return  # machines of several kinds have none, which test_render_fleet.py holds
    (group,) = [each for each in documents(path) if each["kind"] == "LeaderWorkerSet"]
    pod = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    for name in ("keys", "credentials"):
        (tmp_path / name).mkdir()
    for number, node in enumerate(pod["containers"][0]["command"][4:]):
        (tmp_path / "keys" / node).write_text(node)
        script = pod["initContainers"][-1]["command"]
        here = [
            word.replace(" /credentials", f" {tmp_path}/credentials").replace("/keys/", f"{tmp_path}/keys/")
            for word in script
        ]
        done = run(*here, cwd=tmp_path, LWS_WORKER_INDEX=str(number))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "credentials/link.key").read_text() == node
        (tmp_path / "keys" / node).unlink()
        for place, ref in ((str(number), "key-missing"), ("2", "place-unknown"), ("", "place-unknown")):
            refused = run(*here, cwd=tmp_path, LWS_WORKER_INDEX=place)
            assert (refused.returncode, refused.stderr.count("\n  hint: ")) == (3, 1), refused.stderr
            assert refused.stderr.startswith(f"error[{ref}]: ")


def test_keys_become_secrets(delivery: Path, tmp_path: Path) -> None:
    (tmp_path / "kubectl").write_text('#!/bin/sh\necho "$@" >>"$(dirname "$0")/asked"\n')
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "api-keys").write_text("me secret\n")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run(delivery / "k8s/keys.sh", tmp_path / "api-keys", cwd=tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "asked").read_text()
    for bundle in (delivery.parent / "bundles").iterdir():
        assert f"--from-file={bundle.name}={bundle}/node/link.key" in asked
    wanted = {
        source["secret"]["name"]
        for each in documents(delivery / "k8s/statefulsets.yaml")
        if each["kind"] == "StatefulSet"
        for volume in each["spec"]["template"]["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
    }
    assert {line.split()[3] for line in asked.splitlines() if line.startswith("create")} == wanted
    assert run(delivery / "k8s/keys.sh", cwd=tmp_path, PATH=path).returncode == 2


def test_ansible_takes_the_playbook(delivery: Path) -> None:
    nodes = [{"name": bundle.name, "address": "pi.local"} for bundle in sorted((delivery.parent / "bundles").iterdir())]
    (delivery.parent / "nodes.toml").write_text(
        "".join(f"[[node]]\nname = {json.dumps(each['name'])}\naddress = 'pi'\n" for each in nodes)
    )
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = run(playbook, "--syntax-check", "deliver.yml", cwd=delivery / "ansible")
    assert done.returncode == 0, done.stderr
    told = json.loads(run(sys.executable, "inventory.py", cwd=delivery / "ansible").stdout)
    assert told["fleet"]["hosts"] == [each["name"] for each in nodes]
    whole = (delivery.parent / "nodes.toml").read_text()
    (delivery.parent / "nodes.toml").write_text("[[node]]\nname = 'another'\naddress = 'pi'\n")
    refused = run(sys.executable, "inventory.py", cwd=delivery / "ansible")
    (delivery.parent / "nodes.toml").write_text(whole)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error[node-missing]: nodes.toml has no {nodes[0]['name']}")


# HAProxy, in front of two heads


@contextmanager
def head(name: str, status: int = 200, said: str = "ready") -> Iterator[int]:
    """One whose /health is this, and that answers with its name."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self._say({"status": said}, status)
            else:
                self._say({"head": name})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._say({"head": name})

        def _say(self, body: dict[str, str], code: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(frozen=True)
class Front:
    """A running HAProxy: its ports with and without TLS, and the certificate that it is to show."""

    tls: int
    plain: int
    certificate: Path

    def asked(self, path: str, body: bytes | None = None) -> Any:
        """What it answers over TLS, from whoever it asked."""
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.trusting())
        )
        return json.load(opener.open(urllib.request.Request(f"https://127.0.0.1:{self.tls}{path}", body), timeout=10))

    def trusting(self) -> ssl.SSLContext:
        """One that trusts nobody but who has that certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.check_hostname = False
        return context

    def speaks(self, version: ssl.TLSVersion) -> str:
        """The protocol of HTTP that it chooses in this version of TLS."""
        context = self.trusting()
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with socket.create_connection(("127.0.0.1", self.tls), 10) as plain, context.wrap_socket(plain) as line:
            return str(line.selected_alpn_protocol())


@contextmanager
def front(folder: Path, heads: dict[str, int], *others: int) -> Iterator[Front]:
    """HAProxy with the configurations of builds in one folder, before the head of each model and others of all.

    Its library forbids it nothing.
    """
    (folder / "ruvrun").mkdir()
    words = ("-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ruvrun", "-keyout", "key", "-out", "certificate")
    assert run("openssl", "req", *words, cwd=folder).returncode == 0
    made = Front(free_port(), free_port(), folder / "certificate")
    (folder / "ruvrun.pem").write_text(made.certificate.read_text() + (folder / "key").read_text())
    ours = {
        "/etc/haproxy/ruvrun.pem": str(folder / "ruvrun.pem"), ":443": f"127.0.0.1:{made.tls}",
        ":80\n": f"127.0.0.1:{made.plain}\n", "\nglobal\n": "\nglobal\n    ssl-default-bind-ciphers ALL:@SECLEVEL=0\n",
    }  # fmt: skip
    for model, port in heads.items():
        files = render_fleet(fleet("pi5", model=model), kind="decoder", version="0.1.0", most=4, wheels=False)
        for path, data in files.items():
            if path.startswith("haproxy/") and not (folder / "ruvrun" / Path(path).name).exists():
                text = data.decode().replace("pi5-0.local:8000", f"127.0.0.1:{port}")
                for before, after in ours.items():
                    text = text.replace(before, after)
                if "backend " in text and "frontend " not in text:
                    text += "".join(f"    server other-{each} 127.0.0.1:{each}\n" for each in others)
                (folder / "ruvrun" / Path(path).name).write_text(text)
    done = run("haproxy", "-c", "-f", folder / "ruvrun", cwd=folder)
    assert done.returncode == 0, done.stderr
    process = subprocess.Popen(
        ["haproxy", "-f", str(folder / "ruvrun")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 30
        while True:
            try:
                made.asked("/v1/models")
                break
            except OSError:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(30)


def test_haproxy_asks_the_head_that_has_the_model(tmp_path: Path) -> None:
    with (
        head("small") as small,
        head("large one") as large,
        front(tmp_path, {"small": small, "large one": large}) as before,
    ):
        names = sorted(path.name for path in (tmp_path / "ruvrun").iterdir())
        assert names == ["00-front.cfg", "large-one.cfg", "small.cfg"]
        assert before.asked("/v1/models") == {"head": "small"}
        for model in ("small", "large one"):
            body = json.dumps({"messages": [{"content": "model"}], "model": model}).encode()
            assert before.asked("/v1/chat/completions", body) == {"head": model}
        assert before.asked("/v2/models/large%20one/infer", b"{}") == {"head": "large one"}
        assert before.asked("/v1/chat/completions", b'{"model": "none"}') == {"head": "small"}


def test_haproxy_asks_every_head_of_a_model_that_serves(tmp_path: Path) -> None:
    """One of which a pipeline is missing does; one that waits for its stages does not, whatever it answers."""
    with (
        head("whole") as whole,
        head("half", 503, "degraded") as half,
        head("waits", 503, "waiting") as waits,
        front(tmp_path, {"small": whole}, half, waits) as before,
    ):
        until = time.monotonic() + 60
        while "waits" in (found := {before.asked("/v1/models")["head"] for _ in range(12)}):
            assert time.monotonic() < until
            time.sleep(0.2)
        assert found == {"whole", "half"}


def test_haproxy_is_spoken_to_in_tls_of_today_alone(tmp_path: Path) -> None:
    """By its certificate, in 1.2 or 1.3, also as HTTP/2. Without TLS it says where to go, and no more."""
    with head("small") as small, front(tmp_path, {"small": small}) as before:
        assert {before.speaks(version) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)} == {"h2"}
        for version, taken in (("-tls1_1", False), ("-tls1_2", True)):
            words = ("s_client", version, "-cipher", "ALL:@SECLEVEL=0", "-connect", f"127.0.0.1:{before.tls}")
            told = run("openssl", *words, cwd=tmp_path)
            assert ("Verification error: self" in told.stdout and told.returncode == 0) is taken, told.stdout
        line = http.client.HTTPConnection("127.0.0.1", before.plain, timeout=10)
        line.request("POST", "/v1/chat/completions", b'{"model": "small"}')
        answer = line.getresponse()
        assert (answer.status, answer.getheader("Location", "").partition(":")[0]) == (302, "https")
        assert b"head" not in answer.read()
