"""What install.sh refuses: one error with its exit code, and nothing is changed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.installs import Installed, everything, install, installed, run, write_bundle


@pytest.mark.parametrize(
    ("words", "ref"),
    [
        (["--pefix", "x"], "usage"),
        (["--name"], "usage"),
        (["--name", "my model"], "name-wrong"),
        (["--name", "../x"], "name-wrong"),
        (["--port", "http"], "usage"),
        (["--port", "0"], "usage"),
        (["--port", "65536"], "usage"),
        (["extra"], "usage"),
        (["--stage", "--rollback"], "usage"),
    ],
)
def test_a_wrong_option_is_2_and_changes_nothing(bundle: Path, here: Installed, words: list[str], ref: str) -> None:
    done = run(bundle / "node/install.sh", "--root", here.root, *words)
    assert (done.returncode, f"error[{ref}]" in done.stderr) == (2, True), done.stderr
    assert everything(here.root) == set()


@pytest.mark.parametrize(
    ("words", "ref"),
    [
        (["--root", ""], "usage"),
        (["--root"], "usage"),
        (["--name", ""], "usage"),
        (["--name", "my model"], "name-wrong"),
        (["extra"], "usage"),
    ],
)
def test_a_wrong_option_of_uninstall_is_2_and_removes_nothing(
    bundle: Path, here: Installed, words: list[str], ref: str
) -> None:
    installed(bundle, here)
    before = everything(here.root)
    done = run(bundle / "node/uninstall.sh", "--root", here.root, *words)
    assert (done.returncode, done.stderr.startswith(f"error[{ref}]: ")) == (2, True), done.stderr
    assert everything(here.root) == before


def test_another_kind_of_machine_is_7(here: Installed, tmp_path: Path) -> None:
    other = "pi5" if platform.machine() != "aarch64" else "x86-64"
    done = install(write_bundle(tmp_path / "other", target=other), here)
    assert (done.returncode, "error[other-architecture]" in done.stderr) == (7, True)
    assert everything(here.root) == set()


def test_an_old_python_is_7(bundle: Path, here: Installed, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text(
        '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2 && exit\ncase "$2" in *version_info*) exit 1 ;; esac\n'
    )
    old.chmod(0o755)
    done = run(bundle / "node/install.sh", "--root", here.root, "--python", old)
    assert (done.returncode, "error[python-old]" in done.stderr, "Python 3.9.2" in done.stderr) == (7, True, True)
    assert everything(here.root) == set()


def test_a_disk_that_is_too_small_is_7_before_anything_is_copied(bundle: Path, here: Installed) -> None:
    with (bundle / "weights/large.bin").open("wb") as large:
        large.truncate(shutil.disk_usage(bundle).free + (1 << 30))
    done = install(bundle, here)
    assert (done.returncode, "error[disk-short]" in done.stderr) == (7, True), done.stderr
    assert not (here.home / "current").exists()
    assert not list(here.root.rglob("*.bin"))


def test_an_altered_wheel_is_5(bundle: Path, here: Installed) -> None:
    (wheel,) = (bundle / "node/wheels").glob("ruvrun-*.whl")
    wheel.write_bytes(wheel.read_bytes() + b".")
    done = install(bundle, here)
    assert (done.returncode, "error[wheels-altered]" in done.stderr) == (5, True), done.stderr
    assert not here.home.exists()


def test_a_python_without_wheels_is_named(bundle: Path, here: Installed) -> None:
    wheels = bundle / "node/wheels"
    (wheels / "numpy-2.0-cp399-cp399-any.whl").write_bytes(b"")
    with (wheels / "SHA256SUMS").open("a") as sums:
        sums.write("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  numpy-2.0-cp399-cp399-any.whl\n")
    done = install(bundle, here)
    assert (done.returncode, "error[wheels-missing]" in done.stderr) == (3, True), done.stderr
    assert "--wheels 3." in done.stderr


@pytest.mark.parametrize("wheels", [False, True])
def test_what_pip_cannot_get_is_told_with_the_way_to_do_without(
    bundle: Path, here: Installed, tmp_path: Path, wheels: bool
) -> None:
    if not wheels:
        shutil.rmtree(bundle / "node/wheels")
    offline = tmp_path / "python3"
    offline.write_text(
        f'#!/bin/sh\ncase "$*" in *"pip install"*) echo no network >&2; exit 1 ;; esac\nexec {sys.executable} "$@"\n'
    )
    offline.chmod(0o755)
    done = run(bundle / "node/install.sh", "--root", here.root, "--python", offline)
    assert (done.returncode, "error[packages-missing]" in done.stderr) == (3, True), done.stderr
    assert "no network\n" in done.stderr
    assert ("build it again with --wheels 3." in done.stderr) is not wheels
    assert everything(here.root) == set()


def test_a_bundle_that_came_on_a_stick_is_installed(bundle: Path, here: Installed) -> None:
    for script in (*(bundle / "node").glob("*.sh"), bundle / "node/ruvrun"):
        script.chmod(0o644)
    done = run(Path("bash"), bundle / "node/install.sh", "--root", here.root, "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    assert here.run("where").returncode == 0
    assert run(here.home / "current/node/uninstall.sh").returncode == 0


@pytest.mark.parametrize("part", ["lib/release.sh", "link.key"])
def test_a_bundle_of_which_a_part_is_missing_is_3(bundle: Path, here: Installed, part: str) -> None:
    (bundle / "node" / part).unlink()
    done = install(bundle, here)
    assert (done.returncode, "error[bundle-missing]" in done.stderr) == (3, True)
    assert everything(here.root) == set()


def test_what_is_no_bundle_is_3(bundle: Path, here: Installed) -> None:
    (bundle / "bundle.toml").unlink()
    done = install(bundle, here)
    assert (done.returncode, "error[bundle-missing]" in done.stderr) == (3, True)


@pytest.mark.parametrize("root", ["/proc/none", "file"])
def test_where_nothing_can_be_written_is_7(bundle: Path, tmp_path: Path, root: str) -> None:
    (tmp_path / "file").touch()
    done = run(bundle / "node/install.sh", "--root", tmp_path / root, "--python", sys.executable)
    assert (done.returncode, done.stderr.count("error[folder-refused]")) == (7, 1), done.stderr
    assert done.stderr.startswith("error["), "what mkdir says is no error of its own"


@pytest.mark.parametrize(
    ("words", "mode", "ref"),
    [((), 0o644, "not-root"), (("--root", "/tmp/none"), 0, "bundle-unreadable")],
)
def test_who_is_not_root_needs_a_root_of_its_own(bundle: Path, words: tuple[str, ...], mode: int, ref: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        theirs = Path(directory, "theirs")
        shutil.copytree(bundle, theirs)
        for path in (theirs.parent, theirs, *theirs.rglob("*")):
            path.chmod(0o755)
        (theirs / "node/link.key").chmod(mode)
        script = theirs / "node/install.sh"
        done = subprocess.run(
            [*([] if os.getuid() else ["setpriv", "--reuid=65534", "--clear-groups"]), script, *words],
            capture_output=True, text=True, check=False, cwd="/",
        )  # fmt: skip
    assert (done.returncode, f"error[{ref}]" in done.stderr, done.stderr.count("error[")) == (7, True, 1), done.stderr
