"""What doctor says of machines: those that it should leave alone, and each of the ways in which one is unfit."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ruvrun import machine
from ruvrun.doctor import Finding, board, examine, system
from ruvrun.doctor.memory import memory
from ruvrun.doctor.ports import ports
from ruvrun.needs import needs
from ruvrun.placement import place, space
from tests.runtime.builds import write_build
from tests.runtime.machines import FIRMWARE, pi, write


@pytest.fixture(autouse=True)
def nobody_keeps_this_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "kernel_clock_is_kept", lambda: False)


def look(root: Path, bundle: Path) -> Iterator[Finding]:
    yield from board.board(bundle, root)
    yield from (system.disk(bundle), system.swap(root), system.clock(root), system.suspend(root))
    yield from system.network(root)


def unwell(root: Path, bundle: Path) -> list[Finding]:
    found = [one for one in look(root, bundle) if one.state != "ok"]
    for one in found:
        assert one.why, f"{one.check}: why does that matter?"
        assert one.hint, f"{one.check}: and what is there to type?"
    return found


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "bundle/node").mkdir(parents=True)
    return tmp_path / "bundle"


def test_a_machine_that_is_well_is_left_alone(tmp_path: Path, bundle: Path) -> None:
    assert unwell(pi(tmp_path / "pi"), bundle) == []
    assert {"page size", "memory control groups", "power", "throttling", "clock", "network eth0"} <= {
        one.check for one in look(tmp_path / "pi", bundle)
    }


def test_a_machine_of_which_nothing_is_known_is_no_reason_to_complain(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert [one.check for one in unwell(tmp_path / "empty", bundle)] == ["clock"]


@pytest.mark.parametrize(
    ("changed", "check", "seen"),
    [
        ({"proc/cgroups": "#subsys\nmemory\t0\t60\t0\n"}, "memory control groups", "off"),
        ({FIRMWARE: "1\n"}, "power", "too low now"),
        ({FIRMWARE: "10000\n"}, "power", "has been too low since it was started"),
        ({"sys/class/hwmon/hwmon0/in0_lcrit_alarm": "1\n"}, "power", "too low now"),
        ({FIRMWARE: "4\n"}, "throttling", "lowered, now"),
        ({FIRMWARE: "e0000\n"}, "throttling", "lowered, since it was started"),
        ({"sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "12\n"}, "throttling", "12 times"),
        ({"proc/swaps": "Filename Type Size Used Priority\n/var/swap file 204796 102400 -2\n"}, "swap", "100.0 MiB"),
        ({"sys/class/net/eth0/speed": "100\n"}, "network eth0", "100 Mbit/s"),
        ({"sys/class/net/eth0/wireless/x": ""}, "network eth0", "Wi-Fi"),
        ({"sys/power/state": "freeze mem\n", "sys/class/power_supply/BAT0/type": "Battery\n"}, "suspend", "a laptop"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, bundle: Path, changed: dict[str, str], check: str, seen: str) -> None:
    (found,) = unwell(pi(tmp_path / "pi", **changed), bundle)
    assert (found.check, found.state) == (check, "warn")
    assert seen in found.seen


def test_a_clock_that_nobody_keeps(tmp_path: Path, bundle: Path) -> None:
    root = pi(tmp_path / "pi")
    (root / "run/systemd/timesync/synchronized").unlink()
    (found,) = unwell(root, bundle)
    assert (found.check, found.hint) == ("clock", "sudo timedatectl set-ntp true")


def test_the_kernel_can_be_asked_about_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert system.kernel_clock_is_kept() in (True, False)


def test_a_laptop_that_was_told_to_stay_awake(tmp_path: Path, bundle: Path) -> None:
    root = pi(
        tmp_path / "pc", **{"sys/power/state": "freeze mem disk\n", "sys/class/power_supply/BAT0/type": "Battery\n"}
    )
    (root / "etc/systemd/system").mkdir(parents=True)
    (root / "etc/systemd/system/sleep.target").symlink_to("/dev/null")
    assert unwell(root, bundle) == []


def test_a_desktop_falls_asleep_a_server_does_not(tmp_path: Path, bundle: Path) -> None:
    root = pi(tmp_path / "pc", **{"sys/power/state": "freeze mem disk\n"})
    assert unwell(root, bundle) == []
    (root / "etc/systemd/system").mkdir(parents=True)
    (root / "etc/systemd/system/default.target").symlink_to("/lib/systemd/system/graphical.target")
    assert [one.check for one in unwell(root, bundle)] == ["suspend"]


def test_compressed_memory_is_no_swap_on_a_disk(tmp_path: Path, bundle: Path) -> None:
    swaps = "Filename Type Size Used Priority\n/dev/zram0 partition 2097152 1048576 100\n"
    assert unwell(pi(tmp_path / "pi", **{"proc/swaps": swaps}), bundle) == []


def test_the_firmware_is_asked_by_its_command_where_the_kernel_does_not_tell(tmp_path: Path, bundle: Path) -> None:
    root = pi(tmp_path / "pi")
    (root / FIRMWARE).unlink()
    command = write(root, {"usr/bin/vcgencmd": "#!/bin/sh\necho throttled=0x50005\n"}) / "usr/bin/vcgencmd"
    command.chmod(0o755)
    assert [one.check for one in unwell(root, bundle)] == ["power", "throttling"]


def built_for(bundle: Path, arch: str, *features: str) -> None:
    (bundle / "node/machine.toml").write_text(
        f'format = 1\ntitle = "A board"\narch = "{arch}"\nfeatures = {list(features)}\n'
    )


def test_the_cpu_is_compared_with_what_the_bundle_was_built_for(tmp_path: Path, bundle: Path) -> None:
    root = pi(tmp_path / "pi")
    built_for(bundle, platform.machine(), "asimd", "asimddp")
    assert unwell(root, bundle) == []
    built_for(bundle, platform.machine(), "asimd", "i8mm", "sve")
    (found,) = [one for one in look(root, bundle) if one.state == "fail"]
    assert (found.check, found.exit_code) == ("CPU", 7)
    assert "it has no i8mm, sve" in found.seen
    assert found.why
    built_for(bundle, "riscv64")
    (found,) = [one for one in look(root, bundle) if one.state == "fail"]
    assert f"the bundle is for riscv64 (A board), this machine is {platform.machine()}" == found.seen
    assert found.why
    assert "./deliver/deliver.sh" in str(found.hint)


def test_a_disk_on_which_the_next_release_does_not_fit(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle / "weights.bin").write_bytes(bytes(1 << 20))
    usage = type("Usage", (), {"free": 200 << 20})()
    monkeypatch.setattr(system.shutil, "disk_usage", lambda _: usage)
    found = system.disk(bundle)
    assert (found.state, "200.0 MiB free" in found.seen, "1.0 MiB" in found.seen) == ("warn", True, True)


# Several models on one machine


def memory_of(path: Path) -> Iterator[Finding]:
    """What is said of the memory for what runs at ``path``, with the space that was planned."""
    placement = place(path)
    return memory(placement, space(placement.manifest, None, None))


def release(root: Path, name: str, identity: str = "one", addresses: Mapping[str, str] = {}) -> Path:
    """An installed release of one stage, current; with ``addresses`` it has peers."""
    home = root / "opt/ruvrun" / name
    write_build(home / "made", ("a", *addresses), {"a": "10.0.0.1", **addresses} if addresses else {})
    (home / "releases").mkdir()
    (home / "made/bundles/a").rename(home / "releases" / identity)
    (home / "current").symlink_to(f"releases/{identity}")
    return home / "releases" / identity


def needed(root: Path, name: str) -> int:
    (finding,) = memory_of(release(root, name))
    assert finding.state == "ok", finding.seen
    return next(
        need.total for need in needs(place(root / f"opt/ruvrun/{name}/current").manifest, ["a"], context=64, streams=4)
    )


def test_models_of_one_machine_have_to_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = needed(tmp_path, "first")
    reserve = 1 << 30
    monkeypatch.setattr(machine, "memory_available", lambda: 1 << 40)
    monkeypatch.setattr(machine, "memory_total", lambda: reserve + 2 * one)
    second = release(tmp_path, "second")
    (finding,) = memory_of(second)
    assert finding.state == "ok"
    third = release(tmp_path, "third")
    (finding,) = memory_of(third)
    assert (finding.state, finding.exit_code) == ("fail", 4)
    assert "first needs" in finding.seen
    assert "uninstall one of the others (first, second)" in str(finding.hint)


def test_models_of_one_machine_cannot_share_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where only one of them runs now."""
    monkeypatch.setattr("ruvrun.ports.port_is_free", lambda *_: True)
    first = place(release(tmp_path, "first", addresses={"b": "10.0.0.2"}))
    assert [one.state for one in ports(first, 8000, tmp_path)] == ["ok"] * 3
    second = place(release(tmp_path, "second", addresses={"b": "10.0.0.2"}))
    found = {one.check: one for one in ports(second, 8000, tmp_path)}
    assert {name: one.state for name, one in found.items()} == {
        "port of a": "fail", "port of the head": "fail", "port of HTTP": "ok",
    }  # fmt: skip
    assert found["port of a"].seen == "7070 is also that of ruvrun@first, which is installed here"
    assert (found["port of a"].exit_code, bool(found["port of a"].why)) == (7, True)


def test_the_release_that_this_one_replaces_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = needed(tmp_path, "first")
    monkeypatch.setattr(machine, "memory_total", lambda: (1 << 30) + one)
    monkeypatch.setattr(machine, "memory_available", lambda: 1 << 20)
    (finding,) = memory_of(tmp_path / "opt/ruvrun/first/releases/one")
    assert (finding.state, finding.exit_code) == ("warn", 0), "it runs, and takes the memory"


def test_a_bundle_that_is_not_installed_knows_no_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: 1 << 20)
    path = write_build(tmp_path, ("a",))
    states = {one.check: one.state for one in examine(path, None, peers=False, root=pi(tmp_path / "pi"))}
    assert states["memory"] == "fail"


def test_page_sizes() -> None:
    assert os.sysconf("SC_PAGE_SIZE") <= 1 << 16
    assert board._pages(1 << 14).seen == "16 KiB"
    large = board._pages(1 << 21)
    assert (large.state, large.exit_code) == ("fail", 7)
    assert large.why
    assert "sudo apt-get install" in str(large.hint)
