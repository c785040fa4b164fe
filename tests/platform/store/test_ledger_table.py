"""The table of a ledger adds up to what the attestation says."""

from __future__ import annotations

import io
from pathlib import Path

from pyarrow import parquet

from govray.governance.record.ledger import CorpusUse, Leaf
from govray.platform.store.ledger_parquet import FILE, SCHEMA, write_table
from govray.platform.store.tile_storage import TileFolder
from tests.support.world import World


def test_its_sums_are_the_attestations(tmp_path: Path) -> None:
    world = World()
    model = world.verify(world.deploy(tmp_path / "model"))
    folder = TileFolder(tmp_path / "tiles")
    for _ in range(2):  # the second replaces the first
        write_table(folder, model.ledger.leaves)
    data = folder.read(FILE)
    assert data is not None
    table = parquet.read_table(io.BytesIO(data))
    assert table.schema == SCHEMA
    tokens: dict[str, int] = {}
    norms = 0
    for row in table.to_pylist():
        if row["layer_group"] is None:
            tokens[row["corpus"]] = tokens.get(row["corpus"], 0) + row["targets"]
        else:
            norms += 1
            leaf = model.ledger.leaves[row["index"]]
            assert leaf.squared_norms[row["corpus"]][row["layer_group"]] == row["squared_norm"]
    assert tokens == {row.corpus: row.tokens for row in model.attestation.coverage}
    assert norms == sum(len(g) for n in model.ledger.norms for g in n.squared_norms.values())


def test_rows_that_a_gate_sent_elsewhere_name_their_route(tmp_path: Path) -> None:
    own, elsewhere = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    leaf = Leaf(
        step=0,
        world_size=1,
        policy=own,
        plan=own,
        streams={own: (0, 3)},
        corpora={
            "gated": CorpusUse(rows=1, targets=8, route=elsewhere),
            "plain": CorpusUse(rows=2, targets=16),
        },
    )
    write_table(TileFolder(tmp_path), [leaf])
    rows = parquet.read_table(tmp_path / FILE).to_pylist()
    assert {row["corpus"]: row["route"] for row in rows} == {"gated": elsewhere, "plain": None}
