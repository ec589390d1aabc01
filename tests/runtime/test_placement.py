"""Which part of a manifest an invocation runs, and where everything is."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from ruvrun import machine
from ruvrun.amounts import show_bytes
from ruvrun.errors import FitError, InputError, MachineError, UsageError
from ruvrun.machine import pin
from ruvrun.manifest import load_manifest
from ruvrun.needs import needs, require_memory
from ruvrun.placement import Endpoint, place, space
from ruvrun.ports import free_ports, port_is_free
from tests.runtime.builds import write_build

ELSEWHERE = {"a": "10.0.0.1", "b": "10.0.0.2"}


def test_a_local_build_is_run_whole_on_free_ports(tmp_path: Path) -> None:
    found = place(write_build(tmp_path))
    assert found.whole
    assert found.head
    assert found.stages == ["a", "b"]
    ports = {found.endpoints.head.port, *(where.port for where in found.endpoints.nodes.values())}
    assert len(ports) == 3
    assert not ports & {7069, 7070, 7071}


def test_a_directory_stands_for_the_manifest_in_it(tmp_path: Path) -> None:
    assert place(write_build(tmp_path).parent).stages == ["a", "b"]


def test_a_node_that_is_asked_for_is_run_alone_on_its_port(tmp_path: Path) -> None:
    found = place(write_build(tmp_path), "b")
    assert (found.stages, found.head, found.whole) == (["b"], False, False)
    assert found.endpoints.nodes["b"] == Endpoint("127.0.0.1", 7071)
    assert found.endpoints.head == Endpoint("127.0.0.1", 7069)


def test_a_copied_bundle_is_its_node(tmp_path: Path) -> None:
    write_build(tmp_path / "build", addresses=ELSEWHERE)
    shutil.copytree(tmp_path / "build" / "bundles" / "a", tmp_path / "there")
    found = place(tmp_path / "there" / "manifest.toml")
    assert (found.stages, found.head, found.whole) == (["a"], True, False)
    assert found.endpoints.nodes["b"] == Endpoint("10.0.0.2", 7071)
    assert found.head_bundle == tmp_path / "there"


def test_one_node_alone_needs_no_name_that_others_know(tmp_path: Path) -> None:
    """Or it would wait for itself, for ever, where its own name has no address."""
    found = place(write_build(tmp_path, ("a",), addresses={"a": "a.invalid"}))
    assert (found.stages, found.head, found.whole) == (["a"], True, True)
    assert {found.endpoints.nodes["a"].host, found.endpoints.head.host} == {"local"}


def test_a_bundle_of_another_build_has_no_part(tmp_path: Path) -> None:
    write_build(tmp_path / "build", addresses=ELSEWHERE)
    bundle = tmp_path / "build" / "bundles" / "a"
    (bundle / "node" / "name").write_text("z\n")
    with pytest.raises(InputError, match="z has no part") as caught:
        place(bundle / "manifest.toml")
    assert "a, b" in str(caught.value)


@pytest.mark.parametrize("asked", ["a", "b"])
def test_a_node_that_no_other_machine_finds_is_told_on_each(tmp_path: Path, asked: str) -> None:
    """It would listen to its own machine alone, and the others would look for it on theirs, for ever."""
    write_build(tmp_path / "build", addresses={"b": "10.0.0.2"})
    with pytest.raises(InputError, match=r"nodes\.toml says 'local' of a") as caught:
        place(tmp_path / "build/bundles" / asked / "manifest.toml")
    assert caught.value.ref == "node-local"


def test_several_bundles_that_are_not_all_need_a_word(tmp_path: Path) -> None:
    manifest = write_build(tmp_path, addresses=ELSEWHERE)
    with pytest.raises(UsageError) as caught:
        place(manifest)
    assert "a, b" in str(caught.value)
    assert "--node" in str(caught.value)
    assert place(manifest, "b").stages == ["b"]


def test_a_local_build_with_a_bundle_missing_is_not_started_in_part(tmp_path: Path) -> None:
    path = write_build(tmp_path)
    shutil.rmtree(tmp_path / "bundles" / "b")
    with pytest.raises(InputError, match="the bundle of b is not beside") as error:
        place(path)
    assert error.value.ref == "bundle-missing"
    assert place(path, "a").stages == ["a"]


def test_an_unknown_node_gets_a_guess(tmp_path: Path) -> None:
    manifest = write_build(tmp_path, ("pi-0", "pi-1"))
    with pytest.raises(UsageError, match="pi0"):
        place(manifest, "pi0")


def test_a_missing_bundle_or_manifest_is_bad_input(tmp_path: Path) -> None:
    manifest = write_build(tmp_path)
    shutil.rmtree(tmp_path / "bundles" / "b")
    with pytest.raises(InputError) as caught:
        place(manifest, "b")
    assert caught.value.ref == "bundle-missing"
    shutil.rmtree(tmp_path / "bundles")
    with pytest.raises(InputError) as caught:
        place(manifest)
    assert caught.value.ref == "bundle-missing"
    with pytest.raises(InputError) as caught:
        place(tmp_path / "none.toml")
    assert caught.value.ref == "file-missing"


def test_space_is_as_planned_or_as_asked(tmp_path: Path) -> None:
    manifest = load_manifest(write_build(tmp_path))
    assert (space(manifest, None, None).context, space(manifest, None, None).streams) == (64, 4)
    assert (space(manifest, 32, 9).context, space(manifest, 32, 9).streams) == (32, 9)
    with pytest.raises(UsageError):
        space(manifest, 65, None)


def test_pipelines_share_what_was_asked_for(tmp_path: Path) -> None:
    path = write_build(tmp_path, ("a", "b", "c", "d"), pipelines=2)
    placement = place(path)
    assert placement.in_order == ["a", "b", "c", "d"]
    assert placement.whole
    for asked, each in ((None, 4), (8, 4), (9, 5), (1, 1)):
        found = space(placement.manifest, None, asked)
        assert found.streams == each
        assert space(placement.manifest, None, placement.streams(found)) == found, "a child is told what it will use"


def test_memory_is_a_sum_and_too_much_is_refused_with_it(tmp_path: Path) -> None:
    manifest = load_manifest(write_build(tmp_path))
    wanted = needs(manifest, ["a", "b"], context=100, streams=10)
    assert [need.kv for need in wanted] == [2 * 2 * 3 * 64 * 4 * 1000] * 2
    total = sum(need.total for need in wanted)
    require_memory(wanted, total, context=100, streams=10)
    with pytest.raises(FitError) as caught:
        require_memory(wanted, total - 1, context=100, streams=10)
    assert "10 streams x 100 tokens" in str(caught.value)


def test_a_control_group_limits_memory_but_not_what_it_only_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert machine.memory_available() == 8000 << 10
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{5000 << 10}\n")
    assert machine.memory_available() == 8000 << 10
    (tmp_path / "memory.max").write_text(f"{6000 << 10}\n")
    assert machine.memory_available() == 1000 << 10
    (tmp_path / "memory.stat").write_text(f"anon 4096\nactive_file 8192\ninactive_file {3000 << 10}\n")
    assert machine.memory_available() == 4000 << 10


def test_ports_that_are_free_and_one_that_is_not() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[0]))
        taken.listen()
        assert not port_is_free("127.0.0.1", ports[0])
    assert port_is_free("127.0.0.1", ports[0])


def test_a_core_that_is_not_there_is_refused() -> None:
    pin([])
    for core in (100_000, -1, 2**40):
        with pytest.raises(MachineError):
            pin([core])


def test_sizes_for_a_person() -> None:
    assert [show_bytes(n) for n in (5, 2048, 3 << 20, 7 << 29)] == ["5 B", "2.0 KiB", "3.0 MiB", "3.5 GiB"]
