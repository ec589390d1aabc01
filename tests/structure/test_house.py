"""The rules of the house, each with a message that says how to keep it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 300
LONGEST_TEST = 500
ROOMS = ("ruvcompile", "runtime", "targets", "tests", "examples")
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
VAGUE_CLASS = re.compile(r"^class (Base\w+|\w+(?:Manager|Handler|Factory))\b", re.MULTILINE)


def _files(*patterns: str) -> list[Path]:
    found = [path for room in ROOMS for pattern in patterns for path in (ROOT / room).rglob(pattern)]
    assert found, "the checkout is not where this test thinks it is"
    return [path for path in found if "__pycache__" not in path.parts]


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", _files("*.py"), ids=_relative)
def test_a_file_fits_into_a_head(path: Path) -> None:
    lines = len(path.read_text("utf-8").splitlines())
    longest = LONGEST_TEST if path.is_relative_to(ROOT / "tests") else LONGEST
    assert lines <= longest, (
        f"{_relative(path)} has {lines} lines: look for two rooms in it, and give each its own file"
    )


@pytest.mark.parametrize("path", [*_files("*.py")], ids=_relative)
def test_names_say_what_is_inside(path: Path) -> None:
    vague = VAGUE & {part.lower() for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not vague, f"{_relative(path)}: name it after what it holds, not {vague}"
    classes = VAGUE_CLASS.findall(path.read_text("utf-8")) if "tests" not in path.parts else []
    assert not classes, f"{_relative(path)}: name {classes} after what they are"


@pytest.mark.parametrize("path", [*_files("*.sh"), ROOT / ".ci/run"], ids=_relative)
def test_a_shell_script_stops_at_the_first_failure(path: Path) -> None:
    assert "\nset -euo pipefail\n" in path.read_text("utf-8"), f"add `set -euo pipefail` to {_relative(path)}"
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_import_direction_holds() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"give a new module its layer in pyproject.toml, or turn the import round:\n{done.stdout}"
    )


def test_a_module_without_a_layer_is_found(tmp_path: Path) -> None:
    """The contract above is exhaustive: this is what happens to a file nobody thought about."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    for package in ("ruvcompile", "runtime/ruvrun"):
        copied = tmp_path / package
        copied.parent.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / package).rglob("*.py"):
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (tmp_path / "ruvcompile/afterthought.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(text)
    program = "import sys; sys.path[:0] = ['.', 'runtime']; from importlinter.cli import lint_imports_command as c; c()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ruvcompile.afterthought" in done.stdout


def test_only_the_command_line_prints() -> None:
    printing = re.compile(r"^\s*(print\(|sys\.exit\(|click\.echo\()", re.MULTILINE)
    for package in ("ruvcompile", "runtime/ruvrun"):
        for path in (ROOT / package).rglob("*.py"):
            if "cli" not in path.parts:
                assert not printing.search(path.read_text("utf-8")), (
                    f"{_relative(path)}: leave printing to the command line"
                )


@pytest.mark.parametrize("path", sorted((ROOT / "tests/system").glob("test_*.py")), ids=_relative)
def test_what_takes_long_is_told_by_its_folder(path: Path) -> None:
    marks = re.search(r"^pytestmark = (.*?)^(?:\]|$)", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert marks and "pytest.mark.system" in marks.group(1), (
        f"{_relative(path)}: mark it `system`, or put it into tests/commands"
    )


def test_every_room_of_the_tests_is_told() -> None:
    told = (ROOT / "tests/README.md").read_text("utf-8")
    rooms = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("*/test_*.py")}
    listed = set(re.findall(r"^\| `(\w+)/` \|", told, re.MULTILINE))
    assert listed == rooms | {"data"}, "tests/README.md lists the folders that there are"


def test_ignored_checks_have_their_reason_beside_them() -> None:
    bare = re.compile(r"#\s*(?:type:\s*ignore(?:\[[\w, -]+\])?|noqa(?::\s*[A-Z0-9, ]+)?)\s*$", re.MULTILINE)
    for path in _files("*.py"):
        if "tests" not in path.parts:
            found = bare.search(path.read_text("utf-8"))
            assert not found, f"{_relative(path)}: say why beside {found.group(0) if found else ''!r}"
