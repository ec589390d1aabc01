"""``manifest.toml`` and ``nodes.toml``: round trips, what the id covers, and every way a file can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.bundle import find_bundles
from ruvrun.errors import InputError
from ruvrun.manifest import (
    Address,
    Head,
    HeadAddress,
    KeyValue,
    Manifest,
    Nodes,
    Pipeline,
    Placed,
    Plan,
    Space,
    dump_manifest,
    dump_nodes,
    identify,
    load_manifest,
    load_nodes,
)
from tests.runtime.manifests import example

replace = msgspec.structs.replace


def write(path: Path, manifest: Manifest) -> Path:
    path.write_bytes(dump_manifest(manifest))
    return path


def named(manifest: Manifest) -> str:
    return identify(manifest.program, manifest.stage, manifest.pipeline)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = example()
    assert load_manifest(write(tmp_path / "manifest.toml", manifest)) == manifest
    assert dump_manifest(load_manifest(tmp_path / "manifest.toml")) == dump_manifest(manifest)


def test_format_protocol_and_id_stand_first(tmp_path: Path) -> None:
    lines = dump_manifest(example()).decode().splitlines()
    assert lines[:3] == ["format = 1", "protocol = 1", f'id = "{example().id}"']


def test_nodes_are_read_as_written(tmp_path: Path) -> None:
    nodes = Nodes(node=[Address(name="a"), Address(name="b", address="b.local", port=9, ssh="x@b")], head=HeadAddress())
    (tmp_path / "nodes.toml").write_bytes(dump_nodes(nodes))
    assert load_nodes(tmp_path / "nodes.toml") == nodes


def test_an_address_has_defaults(tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text('[[node]]\nname = "a"\n')
    assert load_nodes(tmp_path / "nodes.toml").address_of("a") == Address(name="a", address="local", port=7070)


def test_a_node_without_address_is_told_with_those_that_have_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Nodes(node=[Address(name="a"), Address(name="b")]).address_of("c")
    assert error.value.ref == "node-without-address"
    assert "a, b" in str(error.value)


NOT_COMPUTED: dict[str, Callable[[Manifest], Manifest]] = {
    "keys": lambda m: replace(m, node=[replace(node, public_key="z" * 40) for node in m.node]),
    "cores": lambda m: replace(m, node=[replace(node, cpus=[1], threads=9) for node in m.node]),
    "context and streams": lambda m: replace(m, space=Space(context=8, streams=1)),
    "predictions": lambda m: replace(m, plan=Plan(verdict="other")),
    "head": lambda m: replace(m, head=Head(node="b")),
    "name": lambda m: replace(m, program=replace(m.program, name="other")),
    "file": lambda m: replace(m, program=replace(m.program, source="elsewhere/m.gguf")),
    "loss": lambda m: replace(m, program=replace(m.program, loss={"kl": 1.0})),
    "samples": lambda m: replace(m, program=replace(m.program, samples=["x: zeros"])),
}
COMPUTED: dict[str, Callable[[Manifest], Manifest]] = {
    "model": lambda m: replace(m, program=replace(m.program, source_sha256="cd" * 32)),
    "quantisation": lambda m: replace(m, program=replace(m.program, quant="int8")),
    "tokenizer": lambda m: replace(m, program=replace(m.program, files={"tokenizer.json": "aa"})),
    "stage content": lambda m: replace(m, stage=[replace(m.stage[0], sha256="cc" * 32), m.stage[1]]),
    "stage order": lambda m: replace(m, stage=m.stage[::-1]),
    "cut": lambda m: replace(m, stage=[replace(m.stage[0], forward=["other"]), m.stage[1]]),
    "key/value type": lambda m: replace(m, stage=[replace(s, kv=replace(s.kv, dtype="float16")) for s in m.stage]),  # type: ignore[type-var]
    "placement": lambda m: replace(m, pipeline=[Pipeline(stages=m.pipeline[0].stages[::-1])]),
}


@pytest.mark.parametrize("what", NOT_COMPUTED)
def test_the_id_does_not_cover(what: str, tmp_path: Path) -> None:
    changed = NOT_COMPUTED[what](example())
    assert changed != example()
    assert named(changed) == example().id
    assert load_manifest(write(tmp_path / "manifest.toml", changed)) == changed


@pytest.mark.parametrize("what", COMPUTED)
def test_the_id_covers(what: str, tmp_path: Path) -> None:
    changed = COMPUTED[what](example())
    assert named(changed) != example().id
    with pytest.raises(InputError) as error:
        load_manifest(write(tmp_path / "manifest.toml", changed))
    assert error.value.ref == "manifest-id-wrong"
    assert "nodes.toml" in (error.value.hint or "")


def edited(tmp_path: Path, change: Callable[[str], str]) -> Path:
    text = dump_manifest(example()).decode()
    assert change(text) != text
    (tmp_path / "manifest.toml").write_text(change(text))
    return tmp_path / "manifest.toml"


WRONG: list[tuple[Callable[[str], str], str, str]] = [
    (lambda text: text.replace("[head]", "[haed]"), "toml-wrong", "haed"),
    (lambda text: text + "\n[extra]\nx = 1\n", "toml-wrong", "extra"),
    (lambda text: text.replace("weight_bytes = 5", 'weight_bytes = "5"'), "toml-wrong", "weight_bytes"),
    (lambda text: text.replace('kind = "decoder"', 'kind = "encoder"'), "toml-wrong", "kind"),
    (lambda text: text.replace("format = 1", "format = 2"), "format-unknown", "format 2"),
    (lambda text: text.replace("protocol = 1", "protocol = 2"), "protocol-unknown", "protocol 2"),
    (lambda text: text[: len(text) // 2], "", ""),
    (lambda text: "\x00" + text, "toml-invalid", "manifest.toml"),
    (lambda text: text.replace("weight_bytes = 5", "weight_bytes = 6"), "manifest-id-wrong", "own id"),
    (lambda text: text.replace('[head]\nnode = "a"', '[head]\nnode = "z"'), "manifest-node-missing", "z"),
    (lambda text: text.replace('name = "b"', 'name = "c"'), "manifest-node-missing", "b"),
    # What the id does not cover:
    (lambda text: text.replace("a" * 40, "a" * 39), "toml-wrong", "public_key"),
    (lambda text: text.replace("threads = 1", "threads = -1"), "toml-wrong", "threads"),
    (lambda text: text.replace("threads = 1", "threads = 100000"), "toml-wrong", "threads"),
    (lambda text: text.replace('name = "b"', 'name = "../b"'), "toml-wrong", "name"),
    (lambda text: text.replace("streams = 4", "streams = 0"), "toml-wrong", "streams"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_manifest_edited_by_hand(tmp_path: Path, number: int) -> None:
    change, ref, said = WRONG[number]
    with pytest.raises(InputError) as error:
        load_manifest(edited(tmp_path, change))
    assert ref in error.value.ref
    assert said in str(error.value)
    assert error.value.exit_code == 3
    assert error.value.hint


def test_a_manifest_that_does_not_fit_together_although_its_id_is_right(tmp_path: Path) -> None:
    for stages, pipelines, ref in (
        (example().stage[:1], example().pipeline, "manifest-stage-missing"),
        (example().stage, [], "toml-wrong"),
        (example().stage, [Pipeline(stages=[])], "toml-wrong"),
        (example().stage, example().pipeline * 2, "manifest-node-twice"),
    ):
        changed = replace(example(), stage=stages, pipeline=pipelines)
        with pytest.raises(InputError) as error:
            load_manifest(write(tmp_path / "manifest.toml", replace(changed, id=named(changed))))
        assert error.value.ref == ref


@pytest.mark.parametrize(
    "times",
    [
        "rows = [1, 2]\nms = [1.0]",
        "rows = [1]\nms = []",
        "rows = [2, 1]\nms = [1.0, 2.0]",
        "rows = [1, 1]\nms = [1.0, 2.0]",
        "rows = [0]\nms = [1.0]",
        "rows = [1]\nms = [nan]",
        "rows = [1]\nms = [-1.0]",
        "chunks = [16]\nchunk_ms = [inf]",
        "chunks = [16]\nchunk_ms = []",
    ],
)
def test_a_prediction_that_no_step_can_be_read_from(tmp_path: Path, times: str) -> None:
    path = edited(tmp_path, lambda text: f'{text}\n[[plan.expected]]\nnode = "a"\n{times}\n')
    with pytest.raises(InputError, match="expected") as error:
        load_manifest(path)
    assert error.value.ref == "toml-wrong"


def test_two_addresses_of_one_node(tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text('[[node]]\nname = "a"\n[[node]]\nname = "a"\naddress = "other.local"\n')
    with pytest.raises(InputError, match="two entries for node 'a'") as error:
        load_nodes(tmp_path / "nodes.toml")
    assert error.value.ref == "toml-wrong"


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none(tmp_path: Path, port: int) -> None:
    for text in (f'[[node]]\nname = "a"\nport = {port}\n', f"node = []\n[head]\nport = {port}\n"):
        (tmp_path / "nodes.toml").write_text(text)
        with pytest.raises(InputError, match="nodes file") as error:
            load_nodes(tmp_path / "nodes.toml")
        assert error.value.ref == "toml-wrong"


@given(st.data())
def test_no_damage_is_read_as_something_else(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Any one byte changed: an error, or what is computed is unchanged."""
    raw = bytearray(dump_manifest(example()))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damage") / "manifest.toml"
    path.write_bytes(raw)
    try:
        found = load_manifest(path)
    except InputError:
        return
    assert named(found) == example().id == found.id


def test_missing_and_unreadable(tmp_path: Path) -> None:
    for path, ref in ((tmp_path / "none.toml", "file-missing"), (tmp_path, "file-unreadable")):
        with pytest.raises(InputError) as error:
            load_manifest(path)
        assert error.value.ref == ref


def test_bytes_of_key_value_space() -> None:
    assert KeyValue(layers=3, heads=2, head_size=16, dtype="float32").bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert KeyValue(layers=3, heads=2, head_size=16, dtype="float16").bytes_per_token == 3 * 2 * 2 * 16 * 2
    assert KeyValue(layers=3, heads=2, head_size=16, dtype="uint8").bytes_per_token == 3 * 2 * 2 * (16 + 8)


def test_place_of_a_node() -> None:
    manifest = example()
    assert manifest.place_of("b") == (0, Placed(stage=1, node="b"))
    assert manifest.place_of("c") is None
    assert manifest.node_named("a").public_key == "a" * 40


def test_bundles_beside_a_manifest_and_around_one(tmp_path: Path) -> None:
    manifest = example()
    bundle = tmp_path / "bundles" / "b"
    (bundle / "node").mkdir(parents=True)
    write(tmp_path / "manifest.toml", manifest)
    write(bundle / "manifest.toml", manifest)
    (bundle / "node" / "name").write_text("b\n")
    assert find_bundles(tmp_path / "manifest.toml", manifest) == {"b": bundle}
    assert find_bundles(bundle / "manifest.toml", manifest) == {"b": bundle}
