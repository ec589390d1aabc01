"""What install.sh leaves on a machine: settings, packages for each Python, several models; and how all that goes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.installs import Installed, everything, install, installed, other_build, run, write_bundle


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
