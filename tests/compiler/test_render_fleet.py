"""What is rendered for a fleet: complete and well-formed for every kind of machine, whatever a person calls things."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import ruvrun
from ruvcompile.errors import InputError
from ruvcompile.render import mode_of, render_fleet
from ruvcompile.targets import data_root, load_target, target_names
from tests.nodes import STAGE, fleet

NAMES = ["SmolLM2-135M", "my model; rm -rf / $(id) `id` \"x\" 'y' # {{ z }} é", "%n: *a &b !c"]


def rendered(*targets: str, model: str = STAGE.model, kind: str = "decoder") -> dict[str, str]:
    files = render_fleet(fleet(*targets, model=model), kind=kind, version="0.1.0", most=4, wheels=False)
    return {name: data.decode() for name, data in files.items()}


@pytest.mark.parametrize("kind", ["decoder", "graph"])
@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("target", sorted(target_names()))
def test_every_target_renders_every_file(target: str, model: str, kind: str, tmp_path: Path) -> None:
    files = rendered(target, target, model=model, kind=kind)
    assert f"docker/Dockerfile.{load_target(target).backend}" in files
    assert {"k8s/statefulsets.yaml", "k8s/leaderworkerset-image.yaml"} <= files.keys()
    for name, text in files.items():
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "{%" not in text
        assert "$(id)" not in text or name == "README.md"
        assert mode_of(name) == (0o755 if name.endswith((".sh", ".py")) else 0o644)
        if name.endswith(".sh"):
            (tmp_path / "script.sh").write_text(text)
            subprocess.run(["bash", "-n", str(tmp_path / "script.sh")], check=True)
            assert "\nset -euo pipefail\n" in text
        elif name.endswith(".py"):
            ast.parse(text)
        elif name.endswith((".yaml", ".yml")):
            assert list(yaml.safe_load_all(text))


def test_the_same_facts_give_the_same_bytes() -> None:
    assert rendered("pi5", "intel-cpu") == rendered("pi5", "intel-cpu")


def test_machines_of_several_kinds_have_no_set_of_equal_pods() -> None:
    files = rendered("pi5", "intel-cpu")
    assert not [name for name in files if name.startswith("k8s/leader")]
    assert {"docker/Dockerfile.onnxruntime", "docker/Dockerfile.openvino"} <= files.keys()
    assert "LeaderWorkerSet: its pods are alike" in files["README.md"]


def test_an_image_has_the_release_that_it_is_named_after() -> None:
    text = rendered("pi5", "pi5")["docker/Dockerfile.onnxruntime"]
    assert f"'ruvrun[onnxruntime]=={ruvrun.__version__}' 'ruvrun[head]=={ruvrun.__version__}'" in text


def test_only_the_head_is_asked() -> None:
    services = yaml.safe_load(rendered("pi5", "pi5")["docker/compose.yaml"])["services"]
    assert services["pi5-0"]["command"][-4:] == ["--host", "0.0.0.0", "--port", "8000"]
    assert services["pi5-1"]["command"] == ["serve", "/bundle/manifest.toml", "--node", "pi5-1"]
    assert "secrets" in services["pi5-0"]
    assert "secrets" not in services["pi5-1"]


@pytest.mark.parametrize(("target", "device"), [("intel-gpu", "/dev/dri"), ("intel-npu", "/dev/accel")])
def test_a_device_is_handed_to_its_container(target: str, device: str) -> None:
    """With the group of its machine that may open it, which is a number there and in no image."""
    text = rendered(target, "intel-cpu")["docker/compose.yaml"]
    services = yaml.safe_load(text)["services"]
    assert services["pi5-0"]["devices"] == [device]
    assert services["pi5-0"]["group_add"] == ["${RUVRUN_RENDER:-render}"]
    assert "RUVRUN_RENDER=$(getent group render | cut -d: -f3) docker compose up" in text
    assert not services["pi5-1"].keys() & {"devices", "group_add"}
    assert "RUVRUN_RENDER" not in rendered("intel-cpu", "intel-cpu")["docker/compose.yaml"]


RESOURCES = {"intel-gpu": {"gpu.intel.com/i915": 1}, "intel-npu": {"npu.intel.com/accel": 1}, "intel-cpu": None}


@pytest.mark.parametrize(
    "targets", [("intel-gpu", "intel-cpu"), ("intel-npu", "intel-npu"), ("intel-cpu", "intel-gpu")]
)
def test_a_pod_asks_the_cluster_for_its_device(targets: tuple[str, ...]) -> None:
    files = rendered(*targets)
    paths = [name for name in files if name.startswith("k8s/") and name.endswith(".yaml")]
    assert len(paths) == (4 if len(set(targets)) == 1 else 2)
    for path in paths:
        pods = list(_pods(yaml.safe_load_all(files[path])))
        asked = [pod["containers"][0].get("resources", {}).get("limits") for pod in pods]
        assert asked == [RESOURCES[target] for target in targets]
        assert not [each for pod in pods for each in pod.get("initContainers", []) if "resources" in each]
        assert "--nonroot-devices" in files[path], "a pod that is no root may not open what is root's"


def test_a_target_of_ones_own_names_its_resource_and_no_code_knows_it(tmp_path: Path) -> None:
    shutil.copytree(data_root() / "intel-gpu", tmp_path / "mine")
    path = tmp_path / "mine/target.toml"
    path.write_text(path.read_text().replace('["gpu.intel.com/i915"]', '["gpu.intel.com/xe", "example.org/fan"]'))
    ours, theirs = fleet("intel-gpu", "intel-gpu")
    nodes = [(ours[0], load_target("mine", tmp_path)), theirs]
    files = render_fleet(nodes, kind="decoder", version="0.1.0", most=4, wheels=False)
    assert not [name for name in files if name.startswith("k8s/leader")], "its pods would not be alike"
    pods = _pods(yaml.safe_load_all(files["k8s/statefulsets.yaml"].decode()))
    asked = [pod["containers"][0]["resources"]["limits"] for pod in pods]
    assert asked == [{"gpu.intel.com/xe": 1, "example.org/fan": 1}, RESOURCES["intel-gpu"]]


def test_what_a_node_compiles_is_kept_beside_its_container() -> None:
    """Where an image says, in a volume of each node's own: its root and its bundle are not to be written to."""
    files = rendered("intel-gpu", "intel-gpu")
    place = re.findall(r"RUVRUN_CACHE=(\S+)", files["docker/Dockerfile.openvino-gpu"])
    assert len(place) == 1
    assert f"install -d -m 1777 {place[0]}\n" in files["docker/Dockerfile.openvino-gpu"]
    compose = yaml.safe_load(files["docker/compose.yaml"])
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if volume.split(":")[1:] == place
    ]
    assert sorted(mounted) == sorted(compose["volumes"])
    assert len(set(mounted)) == 2
    for name in ("statefulsets", "statefulsets-image", "leaderworkerset", "leaderworkerset-image"):
        pods = list(_pods(yaml.safe_load_all(files[f"k8s/{name}.yaml"])))
        assert len(pods) == 2
        for pod in pods:
            (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == place[0]]
            assert "readOnly" not in mount
            assert {"name": mount["name"], "emptyDir": {}} in pod["volumes"]


@pytest.mark.parametrize("targets", [("pi5", "pi5"), ("pi5", "intel-cpu")])
def test_in_a_cluster_the_head_is_ready_by_its_health_and_keys_come_as_secrets(targets: tuple[str, ...]) -> None:
    for name, text in rendered(*targets).items():
        if not name.startswith("k8s/") or not name.endswith(".yaml"):
            continue
        heads = 0
        for pod in _pods(yaml.safe_load_all(text)):
            (container,) = pod["containers"]
            is_head = "http" in {port["name"] for port in container["ports"]}
            heads += is_head
            assert container["readinessProbe"].get("httpGet", {}).get("path") == ("/health" if is_head else None)
            secrets = set(re.findall(r"'(?:secretName|name)': '(ruvrun-\S+-keys)'", str(pod["volumes"])))
            assert len(secrets) == 1 + is_head, "its own; and the head, of those who may ask"
            bundle = next(each for each in pod["volumes"] if each["name"] in ("bundle", "bundles"))
            assert ("emptyDir" in bundle) is name.endswith("-image.yaml")
        assert heads == 1


def _pods(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in documents:
        if each["kind"] == "StatefulSet":
            yield each["spec"]["template"]["spec"]
        elif each["kind"] == "LeaderWorkerSet":
            template = each["spec"]["leaderWorkerTemplate"]
            yield from (template[part]["spec"] for part in ("leaderTemplate", "workerTemplate"))


def test_names_that_kubernetes_takes_for_one_are_refused() -> None:
    one, other = fleet("pi5", "pi5")
    other = (replace(other[0], node="Pi5.0"), other[1])
    with pytest.raises(InputError) as caught:
        render_fleet([one, other], kind="decoder", version="0.1.0", most=4, wheels=True)
    assert caught.value.ref == "node-names-alike"


# Words that deliver.sh does not take, before it reaches for any machine


def delivered(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    for name, text in rendered("pi5", "pi5").items():
        if "/" not in name:
            (folder / name).write_text(text)
    return subprocess.run(["bash", folder / "deliver.sh", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stage", "switch"], "stage and switch are two things"),
        (["--dry-run", "rollback"], "--dry-run is of stage, not of rollback"),
        (["switch", "--dry-run"], "--dry-run is of stage, not of switch"),
        (["--wait"], "--wait needs a number of seconds"),
        (["--wait", "-5"], "--wait needs a number of seconds"),
        (["--dryrun"], "there is no '--dryrun'"),
        (["stage", "--", "--name", "other"], "--name is not for a delivery"),
        (["--", "--port", "8001", "--root", "/x"], "--root is not for a delivery"),
        (["--", "--switch"], "--switch is not for a delivery"),
    ],
)
def test_wrong_words_are_2(tmp_path: Path, words: list[str], says: str) -> None:
    done = delivered(tmp_path, *words)
    assert (done.returncode, done.stderr.count("error[usage]: "), done.stderr.count("hint: ")) == (2, 1, 1), done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("words", [["--dry-run"], ["stage", "--dry-run"], ["--dry-run", "stage"]])
def test_where_it_is_to_be_no_more_than_told_nothing_is_staged(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "deliver").mkdir()
    (tmp_path / "nodes.toml").write_text('node = [{ name = "pi5-0", ssh = "-" }, { name = "pi5-1", ssh = "-" }]\n')
    done = delivered(tmp_path / "deliver", *words)
    assert done.returncode == 3, done.stderr
    assert done.stdout.split("\n")[0].split() == ["node", "bytes", "free"]


@pytest.mark.parametrize(
    ("words", "code", "ref"),
    [
        ([], 2, "usage"),
        (["api-keys", "more"], 2, "usage"),
        (["none"], 3, "file-missing"),
        (["empty"], 3, "file-missing"),
        (["api-keys"], 3, "bundle-missing"),
    ],
)
def test_what_keys_sh_cannot_do_is_one_error_with_a_hint(tmp_path: Path, words: list[str], code: int, ref: str) -> None:
    done = _keys(tmp_path, "exit 0", *words)
    assert (done.returncode, done.stderr.count(f"error[{ref}]: "), done.stderr.count("hint: ")) == (code, 1, 1)


def test_without_a_cluster_no_secret_is_put(tmp_path: Path) -> None:
    for node in ("pi5-0", "pi5-1"):
        (tmp_path / "bundles" / node / "node").mkdir(parents=True)
        (tmp_path / "bundles" / node / "node/link.key").touch()
    refused = _keys(tmp_path, "echo no cluster >&2; exit 1", "api-keys")
    assert (refused.returncode, refused.stderr.count("error[secret-refused]: ")) == (6, 1), refused.stderr
    missing = _keys(tmp_path, "", "api-keys")
    assert (missing.returncode, "error[kubectl-missing]: " in missing.stderr) == (7, True), missing.stderr


def _keys(folder: Path, kubectl: str, *words: str) -> subprocess.CompletedProcess[str]:
    """keys.sh in a build as far as it looks at it, with a kubectl that does this; with none, where that is nothing."""
    for name, text in (("api-keys", "me secret\n"), ("empty", "")):
        (folder / name).write_text(text)
    script, bin_ = folder / "deliver/k8s/keys.sh", folder / "bin"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(rendered("pi5", "pi5")["k8s/keys.sh"])
    shutil.rmtree(bin_, ignore_errors=True)
    bin_.mkdir()
    for name in ("bash", "sh", "dirname", "realpath", "sed"):
        (bin_ / name).symlink_to(str(shutil.which(name)))
    if kubectl:
        (bin_ / "kubectl").write_text(f"#!/bin/sh\n{kubectl}\n")
        (bin_ / "kubectl").chmod(0o755)
    return subprocess.run(
        ["bash", script, *words], cwd=folder, env={"PATH": str(bin_)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("script", ["deliver.sh", "smoke.sh"])
def test_a_part_that_is_missing_is_3(tmp_path: Path, script: str) -> None:
    delivered(tmp_path, "--help")
    (tmp_path / "fleet.sh").unlink()
    done = subprocess.run(["bash", tmp_path / script], capture_output=True, text=True, check=False)
    assert (done.returncode, "error[file-missing]: there is no fleet.sh" in done.stderr) == (3, True), done.stderr


LOCAL = 'node = [{ name = "pi5-0" }, { name = "pi5-1", address = "x" }]\n'


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        *((text, "nodes-wrong") for text in (None, "node = [", "node = 3\n", "[[node]]\n")),
        *((text, "node-local") for text in (LOCAL, LOCAL.replace('"pi5-0"', '"pi5-0", address = "local"'))),
    ],
)
def test_ansible_is_told_what_is_wrong_with_the_addresses(tmp_path: Path, text: str | None, ref: str) -> None:
    script = tmp_path / "deliver/ansible/inventory.py"
    script.parent.mkdir(parents=True)
    script.write_text(rendered("pi5", "pi5")["ansible/inventory.py"])
    if text is not None:
        (tmp_path / "nodes.toml").write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith(f"error[{ref}]: ")) == (1, True), done.stderr
    assert done.stderr.count("\n  hint: ") == 1
