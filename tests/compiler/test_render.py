"""What is rendered for a node: complete, right for that node, and nothing a strange name could break."""

from __future__ import annotations

import configparser
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ruvcompile.errors import InputError
from ruvcompile.render import FILES, NodeFacts, mode_of, render_node
from ruvcompile.targets import data_root, load_target, target_names

FACTS = NodeFacts(
    model="SmolLM2-135M",
    id="0123456789abcdef" * 4,
    node="pi5-1",
    stage=1,
    stages=4,
    head=False,
    head_node="pi5-0",
    address="pi5-1.local",
    port=7070,
    cpus=(2, 3),
    threads=2,
)
HEAD = replace(FACTS, node="pi5-0", stage=0, head=True, cpus=())


def _text(facts: NodeFacts, name: str, target: str = "pi5") -> str:
    return render_node(load_target(target), facts)[name].decode()


def _unit(facts: NodeFacts) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(_text(facts, "ruvrun.service"))
    return parser["Service"]


@pytest.mark.parametrize("target", sorted(target_names()))
@pytest.mark.parametrize("facts", [FACTS, HEAD, replace(HEAD, stage=None)], ids=["stage", "head", "head only"])
def test_every_target_renders_every_file(target: str, facts: NodeFacts, tmp_path: Path) -> None:
    files = render_node(load_target(target), facts)
    assert set(files) == set(FILES)
    for name, content in files.items():
        assert content.endswith(b"\n")
        assert not content.endswith(b"\n\n")
        assert b"{{" not in content
        assert b"{%" not in content
        if name.endswith(".sh"):
            (tmp_path / name).write_bytes(content)
            subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)
            assert b"\nset -euo pipefail\n" in content


def test_the_same_facts_give_the_same_bytes() -> None:
    assert render_node(load_target("pi5"), FACTS) == render_node(load_target("pi5"), FACTS)


def test_scripts_may_be_run_and_the_rest_only_read() -> None:
    assert {name: oct(mode_of(name)) for name in FILES} == {
        "install.sh": "0o755",
        "uninstall.sh": "0o755",
        "ruvrun.service": "0o644",
        "ruvrun.env": "0o644",
        "README.md": "0o644",
    }


def test_the_unit_starts_this_node_on_its_cores() -> None:
    unit = _unit(FACTS)
    assert unit["ExecStart"] == (
        "/opt/ruvrun-SmolLM2-135M/venv/bin/ruvrun serve /opt/ruvrun-SmolLM2-135M/current/manifest.toml"
        " --node pi5-1 $RUVRUN_ARGS"
    )
    assert unit["CPUAffinity"] == "2 3"
    assert unit["Restart"] == "always"
    assert "CPUAffinity" not in _unit(HEAD)


def test_only_the_head_answers_http_and_only_at_home() -> None:
    assert "RUVRUN_ARGS=--host 127.0.0.1 --port 8000\n" in _text(HEAD, "ruvrun.env")
    assert "RUVRUN_ARGS=\n" in _text(FACTS, "ruvrun.env")
    assert "'ruvrun[head]'" in _text(HEAD, "install.sh")
    assert "ruvrun[head]" not in _text(FACTS, "install.sh")


def test_the_install_script_refuses_another_kind_of_machine() -> None:
    script = _text(FACTS, "install.sh")
    assert '[ "$(uname -m)" = aarch64 ]' in script
    assert "grep -qw asimddp /proc/cpuinfo" in script
    assert "uname -m" not in _text(FACTS, "install.sh", "host")


@pytest.mark.parametrize("name", ["a b", "a;reboot", "$(id)", "a\nb", "../a", ""])
def test_a_name_that_could_break_out_is_refused(name: str) -> None:
    for facts in (replace(FACTS, node=name), replace(FACTS, head_node=name)):
        with pytest.raises(InputError) as caught:
            render_node(load_target("pi5"), facts)
        assert caught.value.ref == "node-name"


def test_a_models_name_becomes_a_safe_service_name() -> None:
    facts = replace(FACTS, model="My model; rm -rf /\n$(id)")
    assert facts.service == "ruvrun-My-model-rm-rf-id"
    assert "\nservice=ruvrun-My-model-rm-rf-id\n" in _text(facts, "install.sh")
    assert "$(id)" not in _text(facts, "install.sh") + _text(facts, "ruvrun.service")


def test_a_target_overrides_a_template(tmp_path: Path) -> None:
    shutil.copytree(data_root() / "pi5", tmp_path / "mine")
    templates = tmp_path / "mine" / "templates"
    templates.mkdir()
    (templates / "ruvrun.env.j2").write_text("ONLY={{ node }}\n")
    files = render_node(load_target("mine", tmp_path), FACTS)
    assert files["ruvrun.env"] == b"ONLY=pi5-1\n"
    assert files["install.sh"] == render_node(load_target("pi5"), FACTS)["install.sh"]


@pytest.mark.parametrize("template", ["{{ nodee }}", "{% if %}"])
def test_a_wrong_template_is_one_clear_error(tmp_path: Path, template: str) -> None:
    shutil.copytree(data_root() / "pi5", tmp_path / "mine")
    (tmp_path / "mine" / "templates").mkdir()
    (tmp_path / "mine" / "templates" / "README.md.j2").write_text(template)
    with pytest.raises(InputError) as caught:
        render_node(load_target("mine", tmp_path), FACTS)
    assert caught.value.ref == "template-wrong"


# The install script, run for real without root and without a package index


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of target ``host`` as far as its install script looks, and a Python whose pip does nothing."""
    node = tmp_path / "bundle" / "node"
    node.mkdir(parents=True)
    (node.parent / "bundle.toml").write_text("")
    (node.parent / "manifest.toml").write_text("")
    for name, content in render_node(load_target("host"), replace(FACTS, node="host-1", head_node="host-0")).items():
        (node / name).write_bytes(content)
        (node / name).chmod(mode_of(name))
    return node.parent


def _run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(script), *arguments], capture_output=True, text=True, check=False)


def _install(bundle: Path, prefix: Path) -> subprocess.CompletedProcess[str]:
    python = prefix / "venv" / "bin" / "python"
    if not python.exists():  # an environment that is there is used; its pip is a stand-in, so nothing is fetched
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\necho \"$@\" >>'%s'\n" % (prefix / "pip.log"))
        python.chmod(0o755)
    return _run(bundle / "node/install.sh", "--prefix", str(prefix), "--no-service", "--python", sys.executable)


def _release(bundle: Path, identity: str) -> None:
    script = bundle / "node/install.sh"
    lines = [f"release={identity}" if line.startswith("release=") else line for line in script.read_text().splitlines()]
    script.write_text("\n".join(lines) + "\n")


def test_install_keeps_two_releases(bundle: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "opt"
    for identity in ("one", "two", "three", "three"):
        _release(bundle, identity)
        done = _install(bundle, prefix)
        assert done.returncode == 0, done.stderr
        assert (prefix / "current").readlink() == Path("releases", identity)
        assert (prefix / "current/bundle.toml").is_file()
    assert {path.name for path in (prefix / "releases").iterdir()} == {"two", "three"}
    assert "-m pip install --quiet --disable-pip-version-check ruvrun[onnxruntime]" in (prefix / "pip.log").read_text()
    assert _run(bundle / "node/uninstall.sh", "--prefix", str(prefix)).returncode == 0
    assert not (prefix / "releases").exists()


def test_install_says_why_it_refuses(bundle: Path, tmp_path: Path) -> None:
    unknown = _run(bundle / "node/install.sh", "--pefix", "x")
    assert (unknown.returncode, "unknown option --pefix" in unknown.stderr) == (2, True)
    (bundle / "bundle.toml").unlink()
    empty = _install(bundle, tmp_path / "opt")
    assert (empty.returncode, "no bundle in" in empty.stderr) == (7, True)
    assert not (tmp_path / "opt/releases").exists()


def test_install_refuses_on_the_wrong_machine(bundle: Path, tmp_path: Path) -> None:
    other = "pi5" if platform.machine() != "aarch64" else "x86-64"
    (bundle / "node/install.sh").write_bytes(render_node(load_target(other), FACTS)["install.sh"])
    done = _install(bundle, tmp_path / "opt")
    assert (done.returncode, "this bundle is for" in done.stderr) == (7, True)
