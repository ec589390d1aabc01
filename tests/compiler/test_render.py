"""What is rendered for a node: complete, right for that node, and nothing a strange name could break."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ruvcompile.errors import InputError
from ruvcompile.render import FILES, NodeFacts, mode_of, render_node
from ruvcompile.targets import data_root, load_target, target_names
from tests.nodes import HEAD, STAGE


def _text(facts: NodeFacts, name: str, target: str = "pi5") -> str:
    return render_node(load_target(target), facts)[name].decode()


def _unit(facts: NodeFacts, section: str = "Service") -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(_text(facts, "ruvrun.service"))
    return parser[section]


@pytest.mark.parametrize("target", sorted(target_names()))
@pytest.mark.parametrize("facts", [STAGE, HEAD, replace(HEAD, stage=None)], ids=["stage", "head", "head only"])
def test_every_target_renders_every_file(target: str, facts: NodeFacts, tmp_path: Path) -> None:
    files = render_node(load_target(target), facts)
    assert set(files) == set(FILES)
    for name, content in files.items():
        assert content.endswith(b"\n")
        assert not content.endswith(b"\n\n")
        assert b"{{" not in content
        assert b"{%" not in content
        if name.endswith(".sh"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
            subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)
            assert b"\nset -euo pipefail\n" in content


def test_the_same_facts_give_the_same_bytes() -> None:
    assert render_node(load_target("pi5"), STAGE) == render_node(load_target("pi5"), STAGE)


def test_scripts_may_be_run_and_the_rest_only_read() -> None:
    assert {name: oct(mode_of(name)) for name in FILES} == {
        "install.sh": "0o755",
        "lib/places.sh": "0o755",
        "lib/machine.sh": "0o755",
        "lib/release.sh": "0o755",
        "lib/service.sh": "0o755",
        "uninstall.sh": "0o755",
        "ruvrun": "0o755",
        "ruvrun.service": "0o644",
        "ruvrun.env": "0o644",
        "requirements.txt": "0o644",
        "machine.toml": "0o644",
        "README.md": "0o644",
    }


def test_the_unit_starts_this_node_on_its_cores() -> None:
    unit = _unit(STAGE)
    assert unit["ExecStart"] == (
        "/opt/ruvrun/%i/ruvrun serve /opt/ruvrun/%i/current/manifest.toml --node pi5-1 $RUVRUN_ARGS"
    )
    assert (unit["Type"], unit["User"], unit["WatchdogSec"]) == ("notify", "ruvrun", "60")
    assert unit["CPUAffinity"] == "2 3"
    assert (unit["Restart"], _unit(STAGE, "Unit")["StartLimitIntervalSec"]) == ("always", "0"), "however often it fails"
    assert "CPUAffinity" not in _unit(HEAD)


def test_the_unit_has_its_keys_from_the_init_system() -> None:
    lines = _text(STAGE, "ruvrun.service").splitlines()
    keys = [line.partition("=")[2] for line in lines if line.startswith("LoadCredential=")]
    assert keys == ["link.key:/opt/ruvrun/%i/current/node/link.key", "api-keys:/etc/ruvrun/%i/api-keys"]


def test_the_unit_may_write_only_what_it_compiles() -> None:
    unit = _unit(STAGE)
    assert (unit["CacheDirectory"], unit["Environment"]) == ("ruvrun/%i", "RUVRUN_CACHE=%C/ruvrun/%i")
    assert unit["ProtectSystem"] == "strict"
    assert "ReadWritePaths" not in unit
    assert "StateDirectory" not in unit


def test_only_the_head_answers_http_and_only_at_home() -> None:
    assert "RUVRUN_ARGS=--host 127.0.0.1 --port 8000\n" in _text(HEAD, "ruvrun.env")
    assert "RUVRUN_ARGS=\n" in _text(STAGE, "ruvrun.env")
    assert "ruvrun[head]==" in _text(HEAD, "requirements.txt")
    assert "ruvrun[head]" not in _text(STAGE, "requirements.txt")


def test_the_install_script_refuses_another_kind_of_machine() -> None:
    script = _text(STAGE, "install.sh")
    assert "\narch=aarch64\nfeatures=(asimd asimddp asimdhp)\n" in script
    assert "\narch=''\nfeatures=()\n" in _text(STAGE, "install.sh", "host")
    assert tomllib.loads(_text(STAGE, "machine.toml")) == {
        "format": 1, "title": "Raspberry Pi 5", "arch": "aarch64", "features": ["asimd", "asimddp", "asimdhp"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["a b", "a;reboot", "$(id)", "a\nb", "../a", ""])
def test_a_name_that_could_break_out_is_refused(name: str) -> None:
    for facts in (replace(STAGE, node=name), replace(STAGE, head_node=name)):
        with pytest.raises(InputError) as caught:
            render_node(load_target("pi5"), facts)
        assert caught.value.ref == "node-name"


def test_a_models_name_becomes_a_safe_service_name() -> None:
    facts = replace(STAGE, model="My model; rm -rf /\n$(id)")
    assert (facts.folder, facts.service) == ("My-model-rm-rf-id", "ruvrun@My-model-rm-rf-id")
    assert "\nname=My-model-rm-rf-id\n" in _text(facts, "install.sh")
    assert "$(id)" not in _text(facts, "install.sh") + _text(facts, "ruvrun.service")


def test_a_target_overrides_a_template(tmp_path: Path) -> None:
    shutil.copytree(data_root() / "pi5", tmp_path / "mine")
    templates = tmp_path / "mine" / "templates"
    templates.mkdir()
    (templates / "ruvrun.env.j2").write_text("ONLY={{ node }}\n")
    files = render_node(load_target("mine", tmp_path), STAGE)
    assert files["ruvrun.env"] == b"ONLY=pi5-1\n"
    assert files["install.sh"] == render_node(load_target("pi5"), STAGE)["install.sh"]


@pytest.mark.parametrize("template", ["{{ nodee }}", "{% if %}"])
def test_a_wrong_template_is_one_clear_error(tmp_path: Path, template: str) -> None:
    shutil.copytree(data_root() / "pi5", tmp_path / "mine")
    (tmp_path / "mine" / "templates").mkdir()
    (tmp_path / "mine" / "templates" / "README.md.j2").write_text(template)
    with pytest.raises(InputError) as caught:
        render_node(load_target("mine", tmp_path), STAGE)
    assert caught.value.ref == "template-wrong"
