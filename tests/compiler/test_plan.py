"""From a fleet and costs to a plan: what is settled before, what is refused, and what the figures say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from ruvcompile import cli
from ruvcompile.errors import FitError, InputError, UsageError
from ruvcompile.plan import context_for, members
from ruvcompile.targets import fleet_targets
from ruvrun.costs import dump_costs, load_costs
from ruvrun.manifest import PACKED, RUNTIME_BYTES, SERVING_BYTES
from tests.compiler.builds import build, options, plan, write_costs
from tests.decoders import tiny_program
from tests.models import write_tiny_gguf

LAYERS = 3
UNITS = 2 * LAYERS + 2
VOCAB = 300
THREE = [f"cpus = [{core}]" for core in range(3)]


@pytest.fixture
def three_cores(monkeypatch) -> None:
    """Each of three nodes may have a core of its own."""
    monkeypatch.setattr("ruvcompile.compile.allowed", lambda: {0, 1, 2})


SPARE = 10 << 20
"""More than weights, activations and logits of the model, less than the keys and values of a layer."""


@pytest.fixture(scope="module", autouse=True)
def _two_cores() -> Iterator[None]:
    """Two nodes on this machine get one thread each, whatever machine this is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ruvcompile.compile.cores", lambda: 2)
        patch.setattr("ruvcompile.compile.allowed", lambda: {0, 1})
        yield


@pytest.fixture(scope="module")
def model(folder) -> Path:
    return write_tiny_gguf(folder / "tiny.gguf", layers=LAYERS)


@pytest.fixture(scope="module")
def costs(model, folder) -> Path:
    """Rows of this model for one thread; every unit costs 1 ms."""
    build(model, folder / "measured")
    return write_costs(folder / "even.toml", load_costs(folder / "measured" / "costs.toml"), {})


def cut_of(result: dict) -> list[int]:
    """Units before each cut, out of the predicted times of stages whose units all cost 1 ms."""
    bounds, at = [], 0.0
    for stage in result["stages"][:-1]:
        at += stage["predicted_ms_one"]
        bounds.append(round(at))
    return bounds


def fleet(folder: Path, *nodes: str) -> str:
    """A fleet file of nodes a, b, ... on this machine, each with more keys; one thread each, as the rows have."""
    tables = [
        f'[[node]]\nname = "{name}"\ntarget = "host"\nthreads = 1\n{keys}\n'
        for name, keys in zip("abcdef", nodes, strict=False)
    ]
    path = folder / "fleet.toml"
    path.write_text("\n".join(tables))
    return str(path)


def four(costs: Path, folder: Path) -> Path:
    """The rows of ``costs`` as those of a Pi with four threads."""
    table = load_costs(costs)
    rows = [msgspec.structs.replace(row, target="pi5", threads=4) for row in table.unit]
    path = folder / "four.toml"
    path.write_bytes(dump_costs(msgspec.structs.replace(table, unit=rows)))
    return path


# One pass through two stages of this machine crosses two links between processes of two nodes, 0.1 ms each by default;
# the head is beside stage 0.
HOPS = 0.2


def test_the_links_latency_is_part_of_every_round(model, folder, costs, tmp_path) -> None:
    text = Path(fleet(tmp_path, "", "")).read_text()
    (tmp_path / "slow.toml").write_text(text + '[[link]]\nlatency = "5ms"\n')
    flags = {"costs": (str(costs),), "streams": 4, "stages": 2}
    near = plan(model, folder, fleet=fleet(tmp_path, "", ""), **flags)
    far = plan(model, folder, fleet=str(tmp_path / "slow.toml"), **flags)
    assert far["bottleneck_ms"] == near["bottleneck_ms"] == 8.0
    # Both steps of two rows are in the ring, and neither is back before it has been everywhere.
    assert near["predicted_tokens_per_s"] == pytest.approx(4000 / (16 + HOPS), abs=0.01)
    assert far["predicted_tokens_per_s"] == pytest.approx(4000 / (16 + 2 * 5), abs=0.01)
    assert far["predicted_tokens_per_s_one"] == pytest.approx(1000 / (8 + 2 * 5), abs=0.01)


def test_even_costs_give_even_stages(model, folder, costs) -> None:
    result = plan(model, folder, costs=(str(costs),))
    assert cut_of(result) == [UNITS // 2]
    assert result["rows"] == 2
    assert result["bottleneck_ms"] == result["lower_bound_ms"] == 2 * UNITS / 2
    assert (result["gap"], result["exact"]) == (0.0, True)
    assert result["predicted_tokens_per_s"] == pytest.approx(4000 / (16 + HOPS), abs=0.01)
    assert result["predicted_tokens_per_s_one"] == pytest.approx(1000 / (8 + HOPS), abs=0.01)
    assert "1.98x" in result["verdict"]
    single = f"{1000 / (8 + HOPS):.1f}"
    assert result["verdict"].endswith(f"; a single user gets {single} tokens/s, and 125.0 from one node")
    one, two = result["alternatives"]
    assert one["shape"] == {"replicas": 1, "stages": 1}
    assert one["why"] == "49.4 % fewer tokens/s; the limit is stage 0 on host-0"
    assert two["shape"] == {"replicas": 2, "stages": 1}
    way = "the limit is the way of a step, 16.20 ms, 0.20 of them outside of stages"
    assert two["why"] == f"the plan's own choice: 0.6 % more tokens/s; {way}"
    for entry in (one, two):
        assert entry["ttft_ms"] == pytest.approx(255 * 0.8), "on one node nothing travels"
    assert (one["tokens_per_s_one"], two["tokens_per_s_one"]) == (125.0, 125.0)


@pytest.mark.parametrize(
    ("tokens", "chunks_ms"),
    [(100, 100 * 0.8), (257, 257 * 0.8), (512, 256 * (0.8 + 0.4)), (768, 256 * (0.8 + 0.4 + 0.4))],
)
def test_the_first_token_waits_for_the_prompt_in_chunks(folder, tokens, chunks_ms) -> None:
    """A prompt token costs 0.4 ms on each of two stages; a chunk follows the one before into the first at once. The
    last one brings the first token.
    """
    long = write_tiny_gguf(folder / "long.gguf", layers=LAYERS, context=1024)
    result = plan(long, folder, prompt_tokens=tokens)
    assert result["predicted_ttft_ms"] == pytest.approx(chunks_ms + HOPS)


def test_no_first_token_is_promised_of_a_prompt_that_would_be_refused(model, folder, costs, capsys) -> None:
    flags = ["plan", str(model), "--target", "host", "--nodes", "2", "--stages", "2", "--costs", str(costs)]
    assert cli.run([*flags, "--json"]) == 0
    told = capsys.readouterr()
    assert "--prompt-tokens 255 (default)" in told.err, "what leaves room for one token in a context of 256"
    assert json.loads(told.out)["predicted_ttft_ms"] == pytest.approx(255 * 0.8 + HOPS)
    for asked, context, most in ((256, [], 255), (512, [], 255), (64, ["--context", "64"], 63)):
        assert cli.run([*flags, *context, "--prompt-tokens", str(asked)]) == 2
        told = capsys.readouterr()
        assert "error[prompt-tokens-invalid]" in told.err
        assert f"hint: --prompt-tokens {most}, or a larger --context" in told.err
        assert cli.run([*flags, *context, "--prompt-tokens", str(most)]) == 0


@pytest.mark.parametrize(("head", "cut"), [(1.0, 4), (3.0, 5), (6.0, 6), (20.0, 7)])
def test_a_heavy_head_moves_the_cut_away_from_the_middle(model, folder, costs, tmp_path, head, cut) -> None:
    heavy = write_costs(tmp_path / "heavy.toml", load_costs(costs), {"head": head})
    result = plan(model, folder, costs=(str(heavy),))
    assert [stage["predicted_ms_one"] for stage in result["stages"]] == [cut, UNITS - 1 - cut + head]
    assert [stage["predicted_ms"] for stage in result["stages"]] == [2 * cut, 2 * (UNITS - 1 - cut + head)]


def test_the_objective_decides(model, folder, costs, tmp_path) -> None:
    """For one user a second node is only on the way."""
    result = plan(model, folder, costs=(str(costs),), fleet=fleet(folder, *THREE[:2]), objective="latency")
    assert result["shape"] == {"replicas": 1, "stages": 1}
    forced = plan(model, folder, costs=(str(costs),), stages=2, objective="latency")
    assert sum(stage["predicted_ms_one"] for stage in forced["stages"]) == pytest.approx(UNITS)
    assert forced["gap"] == 0.0
    assert forced["lower_bound_ms"] == pytest.approx(UNITS + HOPS)


def test_three_nodes_and_the_shapes_with_fewer(model, folder, costs, three_cores) -> None:
    result = plan(model, folder, fleet=fleet(folder, *THREE), costs=(str(costs),), stages=3)
    assert result["shape"] == {"replicas": 1, "stages": 3}
    shapes = [(entry["shape"]["replicas"], entry["shape"]["stages"]) for entry in result["alternatives"]]
    assert shapes == [(1, 1), (2, 1), (3, 1), (1, 2)]
    assert all(entry["fits"] for entry in result["alternatives"])
    assert result["alternatives"][0]["tokens_per_s_one"] == pytest.approx(1000 / UNITS, abs=0.01)


def test_a_forced_cut_stands_beside_the_best_one(model, folder, costs) -> None:
    result = plan(model, folder, costs=(str(costs),), cut="layers.0/attn/add")
    assert cut_of(result) == [2]
    assert result["bottleneck_ms"] == 12.0
    best = result["alternatives"][-1]
    assert best["shape"] == {"replicas": 1, "stages": 2}
    assert best["tokens_per_s"] == pytest.approx(4000 / (16 + HOPS), abs=0.01)
    assert best["why"].startswith("the plan's own cut: 48.1 % more tokens/s; the limit is the way of a step, 16.20 ms")


def test_a_forced_cut_that_is_the_best_one_is_no_alternative(model, folder, costs) -> None:
    result = plan(model, folder, costs=(str(costs),), cut="layers.1/attn/add")
    assert [entry["shape"]["stages"] for entry in result["alternatives"]] == [1, 1]


def test_two_forced_cuts_make_three_stages(model, folder, costs, three_cores) -> None:
    flags = {"fleet": fleet(folder, *THREE), "costs": (str(costs),)}
    result = plan(model, folder, cut="layers.0/attn/add,layers.2/mlp/add", **flags)
    assert cut_of(result) == [2, 7]


@pytest.mark.parametrize(
    ("cut", "ref"),
    [("layers.0/attn/ad", "cut-unknown"), ("layers.0/attn/q_proj", "cut-unknown")],
)
def test_a_forced_cut_that_is_none(model, folder, costs, cut, ref) -> None:
    with pytest.raises(UsageError) as error:
        plan(model, folder, costs=(str(costs),), cut=cut)
    assert error.value.ref == ref
    assert "did you mean" in (error.value.hint or "")


def test_too_few_cuts_for_the_stages(model, folder, costs) -> None:
    flags = {"fleet": fleet(folder, "", "", ""), "costs": (str(costs),), "stages": 3}
    with pytest.raises(UsageError) as error:
        plan(model, folder, cut="layers.0/attn/add", **flags)
    assert error.value.ref == "cut-count"


@pytest.mark.parametrize("stages", [3, 100])
def test_more_stages_than_nodes(model, folder, costs, stages) -> None:
    with pytest.raises(FitError) as error:
        plan(model, folder, costs=(str(costs),), stages=stages)
    assert error.value.ref == "stages-over-nodes"
    assert error.value.exit_code == 4
    assert f"{stages} stages need {stages} nodes, the fleet has 2" in str(error.value)


@pytest.mark.parametrize(
    ("asked", "says", "hint"),
    [
        ({"stages": 1, "replicas": 3}, "1 stage x 3 replicas need 3 nodes, the fleet has 2", "lower --replicas to 2"),
        ({"stages": 2, "replicas": 2}, "2 stages x 2 replicas need 4 nodes, the fleet has 2", "lower --stages to 1"),
        ({"stages": 3}, "3 stages need 3 nodes, the fleet has 2", "lower --stages to 2"),
    ],
)
def test_a_shape_that_the_fleet_is_too_small_for_says_what_is_not(model, folder, costs, asked, says, hint) -> None:
    with pytest.raises(FitError) as error:
        plan(model, folder, costs=(str(costs),), **asked)
    assert (error.value.ref, error.value.exit_code) == ("stages-over-nodes", 4)
    assert error.value.message == says
    assert error.value.hint == f"{hint}, or add nodes"


def test_more_stages_than_places_to_cut(model, folder, costs) -> None:
    with pytest.raises(FitError) as error:
        plan(model, folder, nodes=str(UNITS + 1), stages=UNITS + 1)
    assert error.value.ref == "stages-over-units"


def test_too_long_a_context(model, folder, costs) -> None:
    with pytest.raises(UsageError) as error:
        plan(model, folder, costs=(str(costs),), context=257)
    assert error.value.ref == "context-too-long"
    assert "256" in error.value.message


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


def test_slow_links_are_resources(model, folder, costs) -> None:
    """256 bytes a token over a link of 64 kB/s are 4 ms, which no stage spends."""
    nodes = ('address = "10.0.0.1"', 'address = "10.0.0.2"')
    flags = {"costs": (str(costs),), "stages": 2}
    assert cut_of(plan(model, folder, fleet=fleet(folder, *nodes), **flags)) == [4]
    path = Path(fleet(folder, *nodes))
    path.write_text(path.read_text() + '\n[[link]]\nbandwidth = "512kbit"\nlatency = "1ms"\n')
    slow = plan(model, folder, fleet=str(path), **flags)
    assert slow["bottleneck_ms"] == 8.0, "the link has as much to do as the stages"
    assert slow["predicted_tokens_per_s_one"] == pytest.approx(1000 / (8 + 4 + 2 * 1), abs=0.01)
    assert slow["stages"][0]["cut_bytes"] == 256


def test_one_node(model, folder, costs, tmp_path) -> None:
    result = plan(model, folder, fleet=fleet(folder, ""), costs=(str(costs),))
    assert result["shape"]["stages"] == 1
    assert result["alternatives"] == []
    assert result["verdict"] == "one node: 125.0 tokens/s with 4 in flight"
    assert result["stages"][0]["cut_bytes"] == 0


def test_the_honest_verdict_when_one_node_is_faster(model, folder, costs, tmp_path) -> None:
    """All work in one unit: the second node only waits."""
    rows = {"embed": 0.0, "layers.*.attn": 0.0, "layers.*.mlp": 0.0, "head": 9.0}
    heavy = write_costs(tmp_path / "heavy.toml", load_costs(costs), rows)
    result = plan(model, folder, fleet=fleet(folder, "", ""), costs=(str(heavy),), stages=2)
    assert result["verdict"].startswith("one node is faster")
    chosen = plan(model, folder, fleet=fleet(folder, "", ""), costs=(str(heavy),), replicas=1)
    assert chosen["shape"] == {"replicas": 1, "stages": 1}
    assert chosen["verdict"].startswith("one node, as asked: "), "two copies would be more"


def test_the_prompt_that_is_assumed_is_told_of_decoders(model, folder, costs, capsys) -> None:
    flags = ["--target", "host", "--nodes", "2", "--costs", str(costs)]
    assert cli.run(["plan", str(model), *flags]) == 0
    assert "--prompt-tokens 255 (default)" in capsys.readouterr().err
    assert cli.run(["plan", str(model), *flags, "--prompt-tokens", "7"]) == 0
    assert "--prompt-tokens" not in capsys.readouterr().err


def test_stage_figures_add_up(model, folder, costs) -> None:
    result = plan(model, folder, costs=(str(costs),))
    assert sum(stage["graph_nodes"] for stage in result["stages"]) == 3 + 17 * LAYERS
    assert [stage["cut_bytes"] for stage in result["stages"]] == [256, 0]
    assert sum(stage["kv_bytes"] for stage in result["stages"]) == LAYERS * 2 * 2 * 16 * 4 * 256 * 4
    for stage, other in pairwise(result["stages"]):
        assert (stage["node"], other["node"]) == ("host-0", "host-1")
    assert all(stage["predicted_rss_bytes"] > RUNTIME_BYTES for stage in result["stages"])


def test_a_stage_needs_the_rotary_tables_once(model, folder, costs) -> None:
    """All attentions read them; one stage that holds three has them once, as its bundle does."""
    whole = plan(model, folder, fleet=fleet(folder, ""), costs=(str(costs),))["stages"][0]
    other = plan(model, folder, fleet=fleet(folder, ""), costs=(str(costs),), streams=5)["stages"][0]
    least = RUNTIME_BYTES + SERVING_BYTES + whole["kv_bytes"] + PACKED * whole["weight_bytes"]
    assert least <= whole["predicted_rss_bytes"] <= least + SPARE
    assert other["predicted_rss_bytes"] - whole["predicted_rss_bytes"] == whole["kv_bytes"] // 4 + 10 * 4 * VOCAB


def test_a_plan_writes_nothing(model, folder, costs, tmp_path) -> None:
    plan(model, tmp_path, costs=(str(costs),))
    assert list(tmp_path.iterdir()) == []
