"""The output of a build appears all at once: whatever kills it, what was there stays whole or is wholly new."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ruvcompile import cli, workspace
from ruvcompile.errors import InputError, MachineError
from tests.compiler.builds import build, check_whole, snapshot
from tests.models import write_tiny_gguf

ROOT = Path(__file__).parents[2]
NOBODY = 65534
DEAD = 2**22 + 1
"""Above every process id that Linux gives out."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=2)


@pytest.fixture(scope="module")
def built(model, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("built") / "dist"
    build(model, output)
    return output


class Builder:
    """The process of ``killed_builds``, and what to build with it."""

    def __init__(self, model: Path, costs: Path) -> None:
        self.order = {"model": str(model), "flags": {"name": "second", "costs": [str(costs)]}}
        command = [sys.executable, "-m", "tests.compiler.killed_builds"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def build(self, output: Path, at: int | None) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(self.order | {"output": str(output), "at": at}), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def builder(model, built) -> Iterator[Builder]:
    made = Builder(model, built / "costs.toml")
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    assert made.process.wait(timeout=60) == 0


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


def test_a_build_removes_what_killed_ones_left_among_the_temporary_files(tmp_path, monkeypatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in (f"ruvrun-{DEAD}-a", f"ruvcompile-{DEAD}-b", f"ruvrun-{os.getpid()}-c", "ruvrun-d"):
        (tmp_path / "tmp" / name).mkdir()
    with workspace.workspace(tmp_path / "dist"):
        pass
    assert {path.name for path in (tmp_path / "tmp").iterdir()} == {f"ruvrun-{os.getpid()}-c", "ruvrun-d"}


def test_a_killed_build_harms_nothing(builder, built, tmp_path) -> None:
    """Killed at changes spread over a whole build, and at each of the last, where the new takes the old's place."""
    output = Path(shutil.copytree(built, tmp_path / "dist"))
    old = snapshot(output)
    total = builder.build(Path(shutil.copytree(built, tmp_path / "other")), None)
    assert total["status"] == 0
    steps = total["changes"]
    assert steps > 40
    seen = set()
    for at in (0, 1, *range(9, steps - 4, steps // 6), *range(steps - 4, steps)):
        assert builder.build(output, at)["status"] == -9
        manifest, _ = check_whole(output)
        seen.add(manifest.program.name)
        if manifest.program.name != "second":
            assert snapshot(output) == old, f"killed at {at} of {steps}"
        assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {"dist", "other"}
    assert len(seen) == 2, "some died before the change, and some after it"
    assert leftovers(tmp_path)
    assert builder.build(output, None)["status"] == 0
    assert leftovers(tmp_path) == []
    assert check_whole(output)[0].program.name == "second"
    assert snapshot(output / "fleet.keys") == {
        name.removeprefix("fleet.keys/"): data for name, data in old.items() if name.startswith("fleet.keys/")
    }


def test_a_killed_first_build_leaves_no_output(builder, tmp_path) -> None:
    output = tmp_path / "deep" / "dist"
    steps = builder.build(tmp_path / "whole", None)["changes"]
    for at in (0, steps // 2, steps - 3):
        assert builder.build(output, at)["status"] == -9
        assert not output.exists()
    assert builder.build(output, None)["status"] == 0
    check_whole(output)
    assert leftovers(output.parent) == []


def test_a_failed_build_leaves_nothing(model, built, tmp_path, monkeypatch) -> None:
    output = Path(shutil.copytree(built, tmp_path / "dist"))
    old = snapshot(output)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ruvcompile.make.write_build", fail)
    with pytest.raises(MachineError) as error:
        build(model, output, costs=(str(built / "costs.toml"),))
    assert error.value.ref == "output-unwritable"
    assert "No space left" in error.value.message
    assert snapshot(output) == old
    assert leftovers(tmp_path) == []


def test_errors_that_are_not_about_the_output_are_not_told_as_such(tmp_path) -> None:
    for error in (OSError(errno.EIO, "bad disk"), PermissionError(errno.EACCES, "no", str(tmp_path / "model.gguf"))):
        with pytest.raises(OSError, match=str(error.strerror)), workspace.workspace(tmp_path / "dist"):
            raise error


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "two renames"])
def test_the_new_takes_the_place_of_the_old(built, tmp_path, monkeypatch, exchanges) -> None:
    output = Path(shutil.copytree(built, tmp_path / "dist"))
    if not exchanges:
        monkeypatch.setattr(workspace, "_exchange", lambda *_: False)
    with workspace.workspace(output) as work:
        (work / "new").write_text("new")
        assert (output / "manifest.toml").is_file()
    assert snapshot(output) == {"new": b"new"}
    assert leftovers(tmp_path) == []


def test_two_directories_change_places_in_one_call(tmp_path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert workspace._exchange(tmp_path / "one", tmp_path / "other")
    assert snapshot(tmp_path) == {"one/other": b"", "other/one": b""}


def test_a_build_that_was_renamed_away_is_put_back(built, tmp_path) -> None:
    """As a build without the one call leaves it when it dies between its two renames."""
    shutil.copytree(built, tmp_path / f".dist.replaced-{DEAD}")
    (tmp_path / f".dist.partial-{DEAD}").mkdir()
    with pytest.raises(ZeroDivisionError), workspace.workspace(tmp_path / "dist"):
        raise ZeroDivisionError
    assert leftovers(tmp_path) == []
    assert snapshot(tmp_path / "dist") == snapshot(built)


def test_only_leftovers_of_dead_builds_of_this_output_are_swept(tmp_path) -> None:
    kept = [f".dist.partial-{os.getppid()}", f".other.partial-{DEAD}", ".dist.partial-x", ".dist"]
    for name in (*kept, f".dist.partial-{DEAD}"):
        (tmp_path / name).mkdir()
    with workspace.workspace(tmp_path / "dist"):
        pass
    assert leftovers(tmp_path) == sorted(kept)


def test_a_link_to_a_build_stays_a_link(built, tmp_path) -> None:
    shutil.copytree(built, tmp_path / "real")
    (tmp_path / "dist").symlink_to("real")
    with workspace.workspace(tmp_path / "dist") as work:
        (work / "new").write_text("new")
    assert (tmp_path / "dist").is_symlink()
    assert snapshot(tmp_path / "real") == {"new": b"new"}


@pytest.mark.parametrize("what", ["file", "folder", "bundle", "manifest of others"])
def test_what_is_not_a_build_of_ours_is_not_replaced(built, tmp_path, what) -> None:
    output = tmp_path / "dist"
    if what == "file":
        output.write_text("mine")
    elif what == "bundle":
        shutil.copytree(built / "bundles" / "host-0", output)
    else:
        output.mkdir()
        (output / ("manifest.toml" if "manifest" in what else "thesis.tex")).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(InputError) as error, workspace.workspace(output):
        raise AssertionError("entered")
    assert error.value.ref == "output-not-ours"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("how", ["a file", "a link in it", "a link to it"])
def test_a_build_is_not_replaced_with_its_own_model_in_it(model, built, tmp_path, how) -> None:
    output = Path(shutil.copytree(built, tmp_path / "dist"))
    named = output / "model.gguf"
    if how == "a link in it":
        named.symlink_to(model)
    else:
        shutil.copy(model, named)
    if how == "a link to it":
        (tmp_path / "model.gguf").symlink_to(named)
        named = tmp_path / "model.gguf"
    old = snapshot(output)
    with pytest.raises(InputError) as error:
        build(named, output, costs=(str(built / "costs.toml"),))
    assert error.value.ref == "output-holds-input"
    assert snapshot(output) == old
    assert leftovers(tmp_path) == []


def test_of_two_first_builds_that_end_at_once_the_later_stays(tmp_path, monkeypatch) -> None:
    place = tmp_path / "dist"
    rename = Path.rename

    def too_late(path: Path, target: Path) -> Path:
        if path.name.startswith(".dist.partial") and not place.exists():
            place.mkdir()
            (place / "of the other").touch()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", too_late)
    with workspace.workspace(place) as work:
        (work / "ours").touch()
    assert [path.name for path in place.iterdir()] == ["ours"]
    assert leftovers(tmp_path) == []


def test_an_empty_folder_is_filled(tmp_path) -> None:
    (tmp_path / "dist").mkdir()
    with workspace.workspace(tmp_path / "dist") as work:
        (work / "new").write_text("new")
    assert snapshot(tmp_path / "dist") == {"new": b"new"}


@pytest.mark.parametrize("output", ["dist", "deep/dist"])
def test_a_place_that_cannot_be_written_is_exit_7(model, capsys, output) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(model, folder / "tiny.gguf")
        folder.chmod(0o555)
        user = os.geteuid()
        try:
            if not user:
                os.seteuid(NOBODY)
            flags = ["--target", "host", "-o", str(folder / output), "--json"]
            code = cli.run(["build", str(folder / "tiny.gguf"), *flags])
        finally:
            os.seteuid(user)
            folder.chmod(0o755)
        told = capsys.readouterr()
        assert code == 7
        assert json.loads(told.out)["error"]["ref"] == "output-unwritable"
        assert "Traceback" not in told.err
        assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("output", "code"),
    [("/proc/dist", 7), ("/proc/deep/dist", 7), ("n" * 250, 7), ("circle/dist", 7), ("circle", 3)],
)
def test_a_place_that_cannot_be_is_no_bug_of_ours(model, tmp_path, capsys, output, code) -> None:
    (tmp_path / "circle").symlink_to("other")
    (tmp_path / "other").symlink_to("circle")
    assert cli.run(["build", str(model), "--target", "host", "-o", str(tmp_path / output)]) == code
    assert "Traceback" not in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "other"]


def test_a_model_whose_name_is_too_long_is_missing(tmp_path, capsys) -> None:
    assert cli.run(["plan", str(tmp_path / ("n" * 300 + ".gguf")), "--target", "host", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["ref"] == "file-missing"


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_told_to_end_leaves_nothing(tmp_path, ending) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=40)
    command = [sys.executable, "-c", "from ruvcompile.cli import main; main()", "build", str(model)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [*command, "--target", "host", "-o", str(tmp_path / "made" / "dist")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr is not None
        assert "(default)" in process.stderr.readline()
        process.send_signal(ending)
        told = process.stderr.read()
    assert process.returncode == 128 + ending
    assert "Traceback" not in told
    assert not any((tmp_path / "made").glob("*"))
    assert not any((tmp_path / "made").glob(".*"))
    assert not any(scratch.iterdir())


def test_an_error_keeps_its_exit_code_when_standard_output_is_full(tmp_path) -> None:
    command = [sys.executable, "-c", "from ruvcompile.cli import main; main()", "plan", str(tmp_path / "no.gguf")]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*command, "--target", "host", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_an_empty_name_for_the_output_does_not_replace_the_default(model, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["build", str(model), "--target", "host", "-o", "", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["ref"] == "output-missing"
    assert not any(tmp_path.iterdir())
