"""What is rendered for a fleet: complete and well-formed for every kind of machine, whatever a person calls things."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import ruvrun
from ruvcompile.errors import InputError
from ruvcompile.render import mode_of, render_fleet
from ruvcompile.targets import load_target, target_names
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


def test_a_device_is_handed_to_its_container() -> None:
    services = yaml.safe_load(rendered("intel-gpu", "intel-cpu")["docker/compose.yaml"])["services"]
    assert services["pi5-0"]["devices"] == ["/dev/dri"]
    assert "devices" not in services["pi5-1"]


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


@pytest.mark.parametrize("script", ["deliver.sh", "smoke.sh"])
def test_a_part_that_is_missing_is_3(tmp_path: Path, script: str) -> None:
    delivered(tmp_path, "--help")
    (tmp_path / "fleet.sh").unlink()
    done = subprocess.run(["bash", tmp_path / script], capture_output=True, text=True, check=False)
    assert (done.returncode, "error[file-missing]: there is no fleet.sh" in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize("text", [None, "node = [", "node = 3\n", "[[node]]\n"])
def test_ansible_is_told_what_is_wrong_with_the_addresses(tmp_path: Path, text: str | None) -> None:
    script = tmp_path / "deliver/ansible/inventory.py"
    script.parent.mkdir(parents=True)
    script.write_text(rendered("pi5", "pi5")["ansible/inventory.py"])
    if text is not None:
        (tmp_path / "nodes.toml").write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("error[nodes-wrong]: ")) == (1, True), done.stderr
