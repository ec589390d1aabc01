"""install.sh, run for real below a root of its own, with a ruvrun that only judges: releases, checked and switched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.installs import Installed, everything, install, installed, judged, other_build, run, status, write_bundle


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
