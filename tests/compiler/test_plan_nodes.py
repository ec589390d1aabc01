"""What nodes have, and what a plan makes of it: space, threads, company, memory."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ruvcompile import cli
from ruvcompile.errors import FitError, InputError
from ruvcompile.plan import context_for, members
from ruvcompile.targets import fleet_targets
from ruvrun.costs import dump_costs, load_costs
from ruvrun.manifest import PACKED, RUNTIME_BYTES, SERVING_BYTES
from tests.compiler.builds import options, plan
from tests.compiler.even_plans import LAYERS, VOCAB, fleet
from tests.decoders import tiny_program

pytestmark = pytest.mark.usefixtures("two_cores")

SPARE = 10 << 20
"""More than weights, activations and logits of the model, less than the keys and values of a layer."""


def four(costs: Path, folder: Path) -> Path:
    """The rows of ``costs`` as those of a Pi with four threads."""
    table = load_costs(costs)
    rows = [msgspec.structs.replace(row, target="pi5", threads=4) for row in table.unit]
    path = folder / "four.toml"
    path.write_bytes(dump_costs(msgspec.structs.replace(table, unit=rows)))
    return path


def test_space_is_as_asked_or_what_the_nodes_in_use_need(model, folder, costs, tmp_path) -> None:
    program = tiny_program(tmp_path, layers=1)
    assert context_for(program, options(model, folder / "dist", context=128)) == 128
    assert context_for(program, options(model, folder / "dist")) == 256
    for nodes, stages, streams, kept in ((2, 1, 4, 2), (2, 2, 4, 4), (3, 3, 6, 6), (6, 3, 12, 6)):
        result = plan(model, folder, target="pi5", nodes=str(nodes), stages=stages, costs=(str(four(costs, tmp_path)),))
        assert result["shape"] == {"replicas": nodes // stages, "stages": stages}
        held = sum(stage["kv_bytes"] for stage in result["stages"] if stage["pipeline"] == 0)
        assert held == LAYERS * 2 * 2 * 16 * 4 * 256 * kept, f"{streams} in all"


def test_threads_are_as_asked_or_pinned_or_shared(model, folder) -> None:
    path = fleet(folder, "", "cpus = [0, 1, 2]", "")
    Path(path).write_text(Path(path).read_text().replace("threads = 1\ncpus", "cpus", 1))
    asked = options(model, folder / "dist", fleet=path)
    assert [m.threads for m in members(asked, fleet_targets(asked), range(6))] == [1, 3, 1]
    shared = options(model, folder / "dist", nodes="3")
    assert [m.threads for m in members(shared, fleet_targets(shared), range(6))] == [2, 2, 2]
    assert [m.threads for m in members(shared, fleet_targets(shared), range(1))] == [1, 1, 1]
    pis = options(model, folder / "dist", target="pi5", nodes="2")
    assert [m.threads for m in members(pis, fleet_targets(pis), range(1))] == [4, 4]
    with pytest.raises(InputError, match="with 3 threads, and this machine has 2 cores") as caught:
        members(asked, fleet_targets(asked), range(2))
    assert caught.value.ref == "node-threads-over-cores"


def test_who_works_beside_whom(model, folder) -> None:
    """As many as have cores of their own; other machines have nobody beside them."""
    for nodes, cores, beside in ((2, 2, 2), (2, 4, 2), (3, 2, 2), (3, 6, 3)):
        asked = options(model, folder / "dist", nodes=str(nodes))
        assert {m.beside for m in members(asked, fleet_targets(asked), range(cores))} == {beside}
    pis = options(model, folder / "dist", target="pi5", nodes="4")
    assert {m.beside for m in members(pis, fleet_targets(pis), range(2))} == {1}


def test_memory_that_is_too_small_is_told_with_its_sum(model, folder, costs, capsys) -> None:
    """Stage, node, the sum and what it is made of; exit 4, and one object under --json."""
    small = fleet(folder, *['memory = "1200MiB"'] * 2)
    flags = ["--fleet", small, "--costs", str(costs), "--streams", "4000", "--json", "-q"]
    assert cli.run(["plan", str(model), *flags]) == 4
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert error["ref"] == "fleet-memory-short"
    assert error["message"].startswith("stage 0 needs ")
    assert "on a, which has 176.0 MiB usable" in error["message"]
    (context,) = error["context"]
    for part in ("weights ", "key/value ", "(4000 streams x 256 tokens)", "runtime 8", "1.2 GiB installed"):
        assert part in context
    assert "1.0 GiB reserved" in context
    assert "--context" in error["hint"]


def test_memory_moves_the_cut(model, folder, costs) -> None:
    """One node has room for the keys and values of one attention, so the other takes more layers."""
    streams = 1000
    per_layer = 2 * 2 * 16 * 4 * 256 * streams
    room = RUNTIME_BYTES + SERVING_BYTES + per_layer + SPARE
    small = fleet(folder, f"memory = {room}\nreserve = 1", f"memory = {room + per_layer}\nreserve = 1")
    result = plan(model, folder, fleet=small, costs=(str(costs),), streams=streams)
    held = {stage["node"]: stage["kv_bytes"] for stage in result["stages"]}
    assert held == {"a": per_layer, "b": 2 * per_layer}, "whichever comes first"
    assert all(stage["predicted_rss_bytes"] <= room + per_layer for stage in result["stages"])
    assert result["shape"] == {"replicas": 1, "stages": 2}
    assert [entry["fits"] for entry in result["alternatives"]] == [False, False]
    assert "does not fit on one node" in result["verdict"]


def test_a_forced_cut_that_does_not_fit_is_told_as_that_cut(model, folder, costs) -> None:
    room = RUNTIME_BYTES + SERVING_BYTES + 2 * 2 * 16 * 4 * 256 * 1000 + SPARE
    nodes = [f"memory = {room}\nreserve = 1"] * 2
    flags = {"fleet": fleet(folder, *nodes), "costs": (str(costs),), "streams": 1000}
    with pytest.raises(FitError) as error:
        plan(model, folder, cut="layers.1/attn/add", **flags)
    assert error.value.ref == "fleet-memory-short"
    assert error.value.message.startswith("stage 0 needs ")


def test_a_stage_needs_the_rotary_tables_once(model, folder, costs) -> None:
    """All attentions read them; one stage that holds three has them once, as its bundle does."""
    whole = plan(model, folder, fleet=fleet(folder, ""), costs=(str(costs),))["stages"][0]
    other = plan(model, folder, fleet=fleet(folder, ""), costs=(str(costs),), streams=5)["stages"][0]
    least = RUNTIME_BYTES + SERVING_BYTES + whole["kv_bytes"] + PACKED * whole["weight_bytes"]
    assert least <= whole["predicted_rss_bytes"] <= least + SPARE
    assert other["predicted_rss_bytes"] - whole["predicted_rss_bytes"] == whole["kv_bytes"] // 4 + 10 * 4 * VOCAB
