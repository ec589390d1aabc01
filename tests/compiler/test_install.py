"""install.sh and uninstall.sh, run for real below a root of their own, with a ruvrun that only judges."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.installs import Installed, judged, other_build, run, write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture
def here(tmp_path: Path) -> Installed:
    """Where it is installed: a root that has nothing, not even users."""
    (tmp_path / "root").mkdir()
    return Installed(tmp_path / "root")


def install(bundle: Path, here: Installed, *words: object) -> subprocess.CompletedProcess[str]:
    name = ("--name", here.name) if here.name != "tiny" else ()
    return run(bundle / "node/install.sh", *words, *name, "--root", here.root, "--python", sys.executable)


def installed(bundle: Path, here: Installed, *words: object) -> str:
    """Install it, which must work; returns the running release."""
    done = install(bundle, here, *words)
    assert done.returncode == 0, done.stderr
    running = here.named("current")
    assert running is not None
    return running


def status(bundle: Path, here: Installed) -> str:
    return install(bundle, here, "--status").stdout


def everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_release_is_installed_with_its_own_packages_and_a_service(bundle: Path, here: Installed) -> None:
    running = installed(bundle, here)
    assert running.startswith("0123456789ab.")
    assert status(bundle, here) == f"running={running} staged=none previous=none\n"
    assert here.run("where").stdout.startswith(str(here.home / "releases" / running / "python"))
    assert here.unit.read_text() == (bundle / "node/ruvrun.service").read_text()
    assert (here.root / "etc/systemd/system/multi-user.target.wants" / here.unit.name).resolve() == here.unit
    assert (here.settings / "ruvrun.env").read_text() == (bundle / "node/ruvrun.env").read_text()
    assert (here.settings / "api-keys").stat().st_mode & 0o777 == 0o600
    assert (here.home / "current/node/link.key").stat().st_mode & 0o777 == 0o600


def test_it_may_be_repeated(bundle: Path, here: Installed) -> None:
    installed(bundle, here)
    before = {path: path.lstat().st_mtime_ns for path in (here.home / "releases").rglob("*") if path.is_file()}
    installed(bundle, here)
    after = {path: path.lstat().st_mtime_ns for path in (here.home / "releases").rglob("*") if path.is_file()}
    assert after == before
    assert len(here.releases) == 1


def test_what_was_compiled_where_it_was_served_is_no_other_release(bundle: Path, here: Installed) -> None:
    one = installed(bundle, here)
    (bundle / "node/compiled").mkdir()
    (bundle / "node/compiled/stage.blob").write_text("of this machine")
    assert installed(bundle, here) == one


def test_staging_touches_nothing_that_runs(bundle: Path, here: Installed, tmp_path: Path) -> None:
    one = installed(bundle, here)
    second = write_bundle(tmp_path / "second", "two", facts=other_build("b"))
    assert install(second, here, "--stage").returncode == 0
    (two,) = here.releases - {one}
    assert status(second, here) == f"running={one} staged={two} previous=none\n"
    assert install(second, here, "--switch").returncode == 0
    assert status(second, here) == f"running={two} staged=none previous={one}\n"
    assert install(second, here, "--switch").returncode == 0, "it runs already"
    shared, again = (here.home / "releases" / each / "weights/shared.bin" for each in (one, two))
    assert shared.samefile(again), "a layer that did not change lies there twice"


def test_two_releases_are_kept(bundle: Path, here: Installed, tmp_path: Path) -> None:
    made = [installed(bundle, here)]
    for letter in "bcd":
        made.append(installed(write_bundle(tmp_path / letter, letter, facts=other_build(letter)), here))
        assert here.releases == set(made[-2:])


def test_rolling_back(bundle: Path, here: Installed, tmp_path: Path) -> None:
    one = installed(bundle, here)
    second = write_bundle(tmp_path / "second", "two", facts=other_build("b"))
    assert install(second, here, "--stage").returncode == 0
    assert install(second, here, "--rollback").stdout.startswith("unstaged: ")
    assert here.releases == {one}
    two = installed(second, here)
    assert install(second, here, "--rollback").returncode == 0
    assert status(second, here) == f"running={one} staged=none previous={two}\n"
    assert install(second, here, "--rollback").stdout.startswith("nothing to do"), "it must not go back twice"
    assert install(bundle, here, "--rollback").returncode == 0
    assert here.named("current") == two


def test_there_is_nothing_before_the_first_release(bundle: Path, here: Installed) -> None:
    installed(bundle, here)
    assert install(bundle, here, "--rollback").stdout.startswith("stopped: ")
    assert here.named("current") is None
    assert not here.unit.exists()


def test_only_what_is_staged_is_switched_to(bundle: Path, here: Installed) -> None:
    done = install(bundle, here, "--switch")
    assert (done.returncode, "error[not-staged]" in done.stderr) == (3, True)


@pytest.mark.parametrize("code", [3, 4, 5, 7])
def test_a_failed_check_leaves_the_old_release_and_nothing_of_the_new(
    bundle: Path, here: Installed, tmp_path: Path, code: int
) -> None:
    one = installed(bundle, here)
    before = everything(here.root)
    second = judged(write_bundle(tmp_path / "second", "two", facts=other_build("b")), code, "fail  golden: it differs")
    done = install(second, here)
    assert done.returncode == code
    assert "fail  golden: it differs" in done.stdout
    assert "nothing was changed" in done.stderr
    assert here.named("current") == one
    assert everything(here.root) == before


def test_a_first_release_that_fails_leaves_nothing(here: Installed, bundle: Path) -> None:
    assert install(judged(bundle, 5, "it differs"), here).returncode == 5
    assert not here.home.exists()
    assert not here.unit.exists()


def test_a_release_that_was_damaged_is_installed_again(bundle: Path, here: Installed) -> None:
    running = installed(bundle, here)
    (here.home / "current/node/verdict").write_text("5 a byte was flipped")
    assert installed(bundle, here) == running
    assert not (here.home / "current/node/verdict").exists()


def test_an_edited_environment_is_kept(bundle: Path, here: Installed, tmp_path: Path) -> None:
    installed(bundle, here)
    edited = here.settings / "ruvrun.env"
    edited.write_text(edited.read_text() + "OMP_WAIT_POLICY=passive\n")
    text = edited.read_text()
    second = write_bundle(tmp_path / "second", "two", facts=other_build("b"))
    (second / "node/ruvrun.env").write_text("RUVRUN_ARGS=--host 127.0.0.1 --port 8000 --queue 3\n")
    done = install(second, here)
    assert done.returncode == 0
    assert "was edited and stays as it is" in done.stderr
    assert edited.read_text() == text


def test_an_environment_that_nobody_edited_is_the_new_one(bundle: Path, here: Installed, tmp_path: Path) -> None:
    installed(bundle, here, "--port", 8765)
    assert "--port 8765" in (here.settings / "ruvrun.env").read_text()
    second = write_bundle(tmp_path / "second", "two", facts=other_build("b"))
    (second / "node/ruvrun.env").write_text("RUVRUN_ARGS=--host 127.0.0.1 --port 8000 --queue 3\n")
    installed(second, here)
    assert (here.settings / "ruvrun.env").read_text() == "RUVRUN_ARGS=--host 127.0.0.1 --port 8765 --queue 3\n"


def test_after_another_python_the_launcher_says_so_and_repair_mends_it(bundle: Path, here: Installed) -> None:
    installed(bundle, here)
    packages = here.home / "current/python" / sys.implementation.cache_tag
    packages.rename(packages.with_name("cpython-39"))
    told = here.run("where")
    assert told.returncode == 7
    assert told.stderr.startswith("error[python-changed]: ")
    assert "cpython-39" in told.stderr
    assert f"{here.home}/releases" in told.stderr
    done = run(here.home / "current/node/install.sh", "--repair")
    assert done.returncode == 0, done.stderr
    assert here.run("where").returncode == 0
    assert [path.name for path in (here.home / "current/python").iterdir()] == [sys.implementation.cache_tag]


def test_a_bundle_that_is_not_installed_says_so(bundle: Path) -> None:
    told = run(bundle / "node/ruvrun", "doctor", ".")
    assert (told.returncode, "error[not-installed]" in told.stderr) == (7, True)


def test_two_models_side_by_side(bundle: Path, here: Installed) -> None:
    other = Installed(here.root, "other-one")
    installed(bundle, here)
    installed(bundle, other, "--port", 8001)
    assert here.unit.exists()
    assert other.unit.exists()
    assert "--port 8001" in (other.settings / "ruvrun.env").read_text()
    assert run(other.home / "current/node/install.sh", "--status").stdout.startswith("running=0123456789ab.")
    assert run(other.home / "current/node/uninstall.sh").returncode == 0
    assert not other.home.exists()
    assert here.run("where").returncode == 0


def test_uninstall_leaves_nothing(bundle: Path, here: Installed) -> None:
    (here.root / "etc").mkdir()
    installed(bundle, here)
    installed(bundle, here)
    assert run(bundle / "node/uninstall.sh", "--root", here.root).returncode == 0
    assert everything(here.root) == {"etc"}
    again = run(bundle / "node/uninstall.sh", "--root", here.root)
    assert (again.returncode, "error[not-installed]" in again.stderr) == (3, True)


# Bad input


@pytest.mark.parametrize(
    ("words", "ref"),
    [
        (["--pefix", "x"], "usage"),
        (["--name"], "usage"),
        (["--name", "my model"], "name-wrong"),
        (["--name", "../x"], "name-wrong"),
        (["--port", "http"], "usage"),
    ],
)
def test_a_wrong_option_is_2_and_changes_nothing(bundle: Path, here: Installed, words: list[str], ref: str) -> None:
    done = run(bundle / "node/install.sh", "--root", here.root, *words)
    assert (done.returncode, f"error[{ref}]" in done.stderr) == (2, True), done.stderr
    assert everything(here.root) == set()


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


def test_what_is_no_bundle_is_3(bundle: Path, here: Installed) -> None:
    (bundle / "bundle.toml").unlink()
    done = install(bundle, here)
    assert (done.returncode, "error[bundle-missing]" in done.stderr) == (3, True)


def test_who_is_not_root_needs_a_root_of_its_own(bundle: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        theirs = Path(directory, "theirs")
        shutil.copytree(bundle, theirs)
        for path in (theirs.parent, theirs, *theirs.rglob("*")):
            path.chmod(0o755)
        script = theirs / "node/install.sh"
        done = subprocess.run(
            [*([] if os.getuid() else ["setpriv", "--reuid=65534", "--clear-groups"]), script],
            capture_output=True, text=True, check=False, cwd="/",
        )  # fmt: skip
    assert (done.returncode, "error[not-root]" in done.stderr) == (7, True), done.stderr
