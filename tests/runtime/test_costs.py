"""The cost table: round trips, merging, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.costs import (
    CostTable,
    LinkCost,
    NodeCost,
    Provenance,
    Rate,
    UnitCost,
    dump_costs,
    load_costs,
    merge,
)
from ruvrun.errors import InputError

HERE = Provenance(machine="x86_64, 2 cores", cpu="this", software="ruvrun 1", date="2026-01-01")
THERE = Provenance(machine="aarch64, 4 cores", cpu="that", software="ruvrun 1", date="2026-01-02")


def row(key: str, ms: float = 1.0, *, target: str = "host", threads: int = 1, source: int = 0) -> UnitCost:
    return UnitCost(
        key=key, label=f"unit {key}", target=target, backend="onnxruntime", threads=threads, ms=ms, source=source
    )


TIMES = st.floats(0, 1e6, allow_subnormal=False)
ROWS = st.builds(
    UnitCost,
    key=st.text("abcdef0123456789", min_size=1, max_size=4),
    label=st.text(max_size=8),
    target=st.sampled_from(["host", "pi5"]),
    backend=st.just("onnxruntime"),
    threads=st.integers(1, 4),
    ms=TIMES,
    source=st.integers(0, 1),
    spread=TIMES,
    ms_per_token=TIMES,
    depth=st.integers(0, 4096),
    chunk=st.integers(0, 512),
    node=st.lists(st.builds(NodeCost, name=st.text(max_size=5), op=st.text(max_size=5), ms=TIMES), max_size=2),
)
TABLES = st.builds(
    CostTable,
    provenance=st.just([HERE, THERE]),
    unit=st.lists(ROWS, max_size=5),
)


@given(TABLES)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, table: CostTable) -> None:
    path = tmp_path_factory.mktemp("costs") / "costs.toml"
    path.write_bytes(dump_costs(table))
    assert load_costs(path) == table


@given(st.lists(TABLES, max_size=3))
def test_merging_keeps_every_row_and_where_it_is_from(tables: list[CostTable]) -> None:
    merged = merge(tables)
    wanted = {
        (row.key, row.target, row.backend, row.threads): (row.ms, table.provenance[row.source])
        for table in tables
        for row in table.unit
    }
    found = {
        (row.key, row.target, row.backend, row.threads): (row.ms, merged.provenance[row.source]) for row in merged.unit
    }
    assert found == wanted
    assert len(merged.provenance) == len(set(merged.provenance))
    used = {row.source for row in merged.unit}
    assert used == set(range(len(merged.provenance))), "no source that nobody names"
    assert merge([merged]) == merged


def test_the_last_of_equal_rows_counts() -> None:
    one = CostTable(provenance=[HERE], unit=[row("a", 1.0), row("b", 2.0)])
    two = CostTable(provenance=[THERE], unit=[row("a", 3.0)])
    assert [each.ms for each in merge([one, two]).unit] == [3.0, 2.0]
    assert [each.ms for each in merge([two, one]).unit] == [1.0, 2.0]
    assert merge([two, one]).provenance == [HERE]


def test_rows_of_one_kind_of_machine() -> None:
    table = CostTable(provenance=[HERE], unit=[row("a"), row("a", 2.0, threads=2), row("b", 3.0, target="pi5")])
    assert table.rows("ab", "host", "onnxruntime", 1) == [table.unit[0], None]
    assert table.rows("a", "host", "onnxruntime", 2) == [table.unit[1]]
    assert table.rows("ba", "pi5", "onnxruntime", 1) == [table.unit[2], None]
    assert table.rows("a", "host", "openvino", 1) == [None]


def test_no_tables_make_an_empty_one() -> None:
    assert merge([]) == CostTable()


BAD = {
    "negative": ("ms = 1.0", "ms = -1.0", "cost-wrong"),
    "nan": ("ms = 1.0", "ms = nan", "cost-wrong"),
    "infinite": ("ms = 1.0", "ms = inf", "cost-wrong"),
    "negative node": ("ms = 0.5", "ms = -0.5", "cost-wrong"),
    "no such source": ("source = 0", "source = 1", "cost-source"),
    "negative source": ("source = 0", "source = -1", "cost-source"),
    "missing": ("ms = 1.0\n", "", "toml-wrong"),
    "text": ("ms = 1.0", 'ms = "fast"', "toml-wrong"),
    "unknown key": ("ms = 1.0", "ms = 1.0\nmillis = 2", "toml-wrong"),
    "format": ("format = 1", "format = 7", "format-unknown"),
    "no TOML": ("[[unit]]", "[[unit", "toml-invalid"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_cost_table(tmp_path: Path, what: str) -> None:
    old, new, ref = BAD[what]
    unit = UnitCost(
        key="a", label="unit a", target="host", backend="b", threads=1, ms=1.0, source=0,
        node=[NodeCost(name="n", op="Relu", ms=0.5)],
    )  # fmt: skip
    text = dump_costs(CostTable(provenance=[HERE], unit=[unit])).decode()
    assert old in text
    path = tmp_path / "costs.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        load_costs(path)
    assert error.value.ref == ref
    assert error.value.hint


def test_links_that_carry_nothing_and_machines_that_do_nothing_are_refused(tmp_path: Path) -> None:
    link = LinkCost(sender="a", receiver="b", latency_ms=0.0, bytes_per_s=0.0, source=0)
    rate = Rate(name="int4_matvec", value=0.0, unit="B/s", target="host", backend="onnxruntime", threads=1, source=0)
    for table, named in (
        (CostTable(provenance=[HERE], link=[link]), "the link from a to b has bytes_per_s = 0.0"),
        (CostTable(provenance=[HERE], rate=[rate]), "the rate int4_matvec of host has value = 0.0"),
    ):
        (tmp_path / "costs.toml").write_bytes(dump_costs(table))
        with pytest.raises(InputError, match=named) as caught:
            load_costs(tmp_path / "costs.toml")
        assert caught.value.ref == "cost-wrong"


def test_a_link_is_found_by_its_ends_and_direction() -> None:
    def link(sender: str, receiver: str, ms: float) -> LinkCost:
        return LinkCost(sender=sender, receiver=receiver, latency_ms=ms, bytes_per_s=1e6, source=0)

    table = CostTable(provenance=[HERE], link=[link("a", "b", 1), link("b", "a", 2), link("a", "b", 3)])
    assert [found and found.latency_ms for found in (table.between("a", "b"), table.between("b", "a"))] == [3, 2]
    assert table.between("a", "c") is None
