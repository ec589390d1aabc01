"""From a fleet and costs to a plan: what its figures say, and what its verdict."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from ruvcompile import cli
from ruvrun.costs import load_costs
from ruvrun.manifest import RUNTIME_BYTES
from tests.compiler.builds import plan, write_costs
from tests.compiler.even_plans import HOPS, LAYERS, THREE, UNITS, cut_of, fleet
from tests.models import write_tiny_gguf

pytestmark = pytest.mark.usefixtures("two_cores")


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


def test_a_plan_writes_nothing(model, folder, costs, tmp_path) -> None:
    plan(model, tmp_path, costs=(str(costs),))
    assert list(tmp_path.iterdir()) == []
