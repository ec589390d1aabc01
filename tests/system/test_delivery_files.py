"""What is rendered for a fleet, before the programs that it is for: shellcheck, Docker Compose, Kubernetes, Ansible."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ruvcompile.render import mode_of, render_fleet, render_node
from ruvcompile.targets import target_names
from tests.nodes import fleet
from tests.system.tools import needing, run

pytestmark = [pytest.mark.system, needing("shellcheck", "docker-compose")]
SEVERAL = [("pi5", "pi5"), ("x86-64", "x86-64"), ("intel-npu", "intel-npu"), tuple(sorted(target_names()))]


@pytest.fixture(params=SEVERAL, ids=["pi5", "x86-64", "npu", "all"])
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
