"""What the documentation tells a person to type is accepted by the commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from ruvcompile.cli import root as ruvcompile
from ruvcompile.fleet import load_fleet
from ruvrun.cli import cli as ruvrun
from ruvrun.errors import MachineError

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS: dict[str, click.Group] = {"ruvcompile": ruvcompile, "ruvrun": ruvrun}
TEXTS = [
    README,
    *(path.read_text("utf-8") for path in [ROOT / "runtime/README.md", *ROOT.glob("examples/*/README.md")]),
]
EXAMPLES = re.findall(r"^    ((?:ruvcompile|ruvrun) .*)$", "\n".join(TEXTS), re.MULTILINE)
HELP = [
    match
    for group in COMMANDS.values()
    for command in [group, *group.commands.values()]
    for match in re.findall(r"^\s*(?:Example: *)?((?:ruvcompile|ruvrun) \w+ .*)$", command.help or "", re.MULTILINE)
]


@pytest.mark.parametrize("line", sorted({*EXAMPLES, *HELP}))
def test_a_command_in_the_text_is_one_that_exists(line: str) -> None:
    typed = line.partition(" > ")[0]  # where output goes is the shell's business
    program, name, *arguments = shlex.split(typed, comments=True)
    group = COMMANDS[program]
    assert name in group.commands, f"{program} has no command {name}"
    group.commands[name].make_context(name, arguments)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
    assert len(HELP) >= sum(len(group.commands) for group in COMMANDS.values())


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:\./|python3 )((?:examples|tests)/[\w/.]+\w)", README))))
def test_a_script_in_the_text_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


def test_the_fleet_file_in_the_text_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"\n\n((?:    .*\n|\n)+)", README[README.index("A fleet file looks like this:") :])[:1]
    path = tmp_path / "fleet.toml"
    path.write_text(block.replace("\n    ", "\n").lstrip())
    fleet = load_fleet(path)
    assert [node.name for node in fleet.nodes] == ["pi-0", "pi-1"]
    assert fleet.default_link is not None


def test_all_commands_are_named() -> None:
    for group in COMMANDS.values():
        for name in group.commands:
            assert f"`{name}`" in README, f"README.md does not name {name}"


def test_all_exit_codes_are_explained() -> None:
    for code in range(MachineError.exit_code + 1):
        assert re.search(rf"^\| {code} \|", README, re.MULTILINE)
