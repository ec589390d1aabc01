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
    assert here.cache.stat().st_mode & 0o777 == 0o700


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


def test_with_other_packages_it_is_another_release(bundle: Path, here: Installed) -> None:
    """Those of the one that runs are not touched, however it was named."""
    one = installed(bundle, here)
    before = {path: path.lstat().st_mtime_ns for path in (here.home / "releases" / one).rglob("*")}
    words = ("--package", "ruvrun==0.1.0", "--package", "numpy")
    for script in (bundle / "node/install.sh", here.home / "current/node/install.sh"):
        done = run(script, "--stage", *words, "--root", here.root, "--python", sys.executable)
        assert done.returncode == 0, done.stderr
        assert here.named("current") == one
        (two,) = here.releases - {one}
        assert (here.home / "releases" / two / "node/packages").read_text() == "ruvrun==0.1.0\nnumpy\n"
    assert {path: path.lstat().st_mtime_ns for path in (here.home / "releases" / one).rglob("*")} == before
    plain = install(bundle, here, "--switch", "--package", "other")
    assert (plain.returncode, f"{here.home}/staged/node/install.sh --switch, for {two}" in plain.stderr) == (3, True)
    assert install(bundle, here, "--switch", *words).returncode == 0
    assert status(bundle, here) == f"running={two} staged=none previous={one}\n"


def test_a_package_that_lies_here_is_known_by_what_is_in_it(bundle: Path, here: Installed, tmp_path: Path) -> None:
    wheel = tmp_path / "own-1.whl"
    made = []
    for text in ("one", "two", "two"):
        wheel.write_text(text)
        made.append(installed(bundle, here, "--package", f"{wheel}[head]"))
    assert made[0] != made[1] == made[2]


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


LEFT = "0 warn  self-check pi-0: left for the start: it takes 3.0 GiB, and 1.0 GiB are free beside what runs"


def left(directory: Path) -> Path:
    """A bundle whose self-check finds no memory beside what runs."""
    made = write_bundle(directory, "two", facts=other_build("b"))
    (made / "node/verdict").write_text(LEFT)
    return made


@pytest.mark.parametrize("code", [0, 5])
def test_a_self_check_that_was_left_for_the_start_is_made_where_nothing_starts(
    bundle: Path, here: Installed, tmp_path: Path, code: int
) -> None:
    """Without systemd nobody waits for READY, so nobody else would find out; what fails does not run."""
    one = installed(bundle, here)
    second = left(tmp_path / "second")
    assert install(second, here, "--stage").returncode == 0
    (two,) = here.releases - {one}
    (here.home / "releases" / two / "node/verdict").write_text(f"{code} fail  self-check pi-0: WORDS")
    done = install(second, here, "--switch")
    assert "--self-check" in done.stdout
    if code == 0:
        assert (done.returncode, here.named("current"), here.named("previous")) == (0, two, one)
    else:
        assert (done.returncode, f"release {two} does not start; {one} runs again" in done.stderr) == (5, True)
        assert (here.named("current"), here.named("previous"), here.releases) == (one, None, {one})
    assert not (here.home / "current/node/unchecked").exists()


def test_one_that_did_not_start_is_no_way_back(bundle: Path, here: Installed, tmp_path: Path) -> None:
    one = installed(bundle, here)
    second = left(tmp_path / "second")
    for code in (0, 5):
        assert install(second, here, "--stage").returncode == 0
        (verdict,) = (here.home / "staged").resolve().glob("node/verdict")
        verdict.write_text(f"{code} what the start finds")
        assert install(second, here, "--switch").returncode == code
        if code == 0:
            assert install(second, here, "--rollback").returncode == 0
            verdict.write_text(LEFT)
    assert (here.named("current"), here.named("previous"), here.releases) == (one, None, {one})


def test_a_self_check_that_was_made_is_not_made_again(bundle: Path, here: Installed, tmp_path: Path) -> None:
    installed(bundle, here)
    second = write_bundle(tmp_path / "second", "two", facts=other_build("b"))
    assert install(second, here, "--stage").returncode == 0
    (here.home / "staged/node/verdict").write_text("5 it is asked again")
    assert install(second, here, "--switch").returncode == 0


def test_the_check_asks_for_the_space_that_the_settings_name(bundle: Path, here: Installed) -> None:
    installed(bundle, here)
    settings = here.settings / "ruvrun.env"
    settings.write_text("RUVRUN_ARGS=--port 8123 --context 4096 --queue 3 --streams=2\n")
    judged(here.home / "current", 0, "asked: WORDS")
    done = install(bundle, here, "--stage")
    assert "--self-check --context 4096 --streams 2 --port 8123\n" in done.stdout, done.stdout + done.stderr


def test_a_first_release_that_fails_leaves_nothing(here: Installed, bundle: Path) -> None:
    assert install(judged(bundle, 5, "it differs"), here).returncode == 5
    assert not here.home.exists()
    assert not here.unit.exists()


@pytest.mark.parametrize("leave", ["fails", "is uninstalled"])
def test_a_root_that_was_made_goes_too(bundle: Path, tmp_path: Path, leave: str) -> None:
    before = everything(tmp_path)
    here = Installed(tmp_path / "images/new/root")
    if leave == "fails":
        judged(bundle, 5, "it differs")
        before |= {"bundle/node/verdict"}
        assert install(bundle, here).returncode == 5
    else:
        installed(bundle, here)
        assert run(bundle / "node/uninstall.sh", "--root", here.root).returncode == 0
    assert everything(tmp_path) == before


def test_a_root_that_holds_something_else_stays(bundle: Path, tmp_path: Path) -> None:
    here = Installed(tmp_path / "images/root")
    installed(bundle, here)
    (here.root / "etc/hostname").write_text("pi-0")
    assert run(bundle / "node/uninstall.sh", "--root", here.root).returncode == 0
    assert everything(here.root) == {"etc", "etc/hostname"}


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


def test_repair_gives_each_release_the_packages_that_it_had(bundle: Path, here: Installed) -> None:
    installed(bundle, here, "--package", "ruvrun==0.1.0")
    wheels = here.home / "current/node/wheels"
    (pip,) = wheels.glob("pip-*.whl")
    pip.unlink()
    (pip / "pip").mkdir(parents=True)  # one that says what it was asked for
    (pip / "pip/__main__.py").write_text("import sys; print(sys.argv[-1]); sys.exit(1)")
    sums = (wheels / "SHA256SUMS").read_text().splitlines(keepends=True)
    (wheels / "SHA256SUMS").write_text("".join(line for line in sums if "pip-" not in line))
    shutil.rmtree(here.home / "current/python")
    (here.home / "current/python").mkdir()
    done = run(here.home / "current/node/install.sh", "--repair")
    assert (done.returncode, done.stdout) == (3, "ruvrun==0.1.0\n"), done.stderr


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
    assert not any(place.exists() for place in (other.home, other.settings, other.cache, other.unit))
    assert all(place.exists() for place in (here.home, here.settings, here.cache, here.unit))
    assert here.run("where").returncode == 0


def test_two_models_cannot_share_a_port_even_where_neither_runs(bundle: Path, here: Installed) -> None:
    installed(bundle, here, "--port", 8100)
    other = Installed(here.root, "other-one")
    before = everything(here.root)
    done = install(bundle, other, "--port", 8100)
    assert (done.returncode, "error[port-taken]: port 8100 is that of ruvrun@tiny" in done.stderr) == (7, True)
    assert "--port 8101" in done.stderr
    assert everything(here.root) == before
    installed(bundle, other, "--port", 8101)
    assert installed(bundle, here) == here.named("current"), "its own port is not another's"


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
